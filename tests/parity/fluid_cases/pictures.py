"""Convolutions, pooling and resizing of images."""

from __future__ import annotations

import numpy as np

from .case import add, floats
from .inputs import PICTURES, VOLUMES

add(
    "conv2d",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.conv2d(x, 4, 3, stride=2, padding=1, act="relu"),
)
add(
    "conv2d_groups",
    {"x": floats(2, 4, 5, 6)},
    lambda f, x: f.layers.conv2d(
        x, 4, [3, 2], padding=[1, 0], dilation=[1, 2], groups=2, bias_attr=False
    ),
)
add(
    "conv2d_same",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.conv2d(x, 4, 3, stride=2, padding="SAME"),
)
add(
    "conv2d_pads",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.conv2d(x, 4, 3, padding=[[0, 0], [0, 0], [1, 2], [0, 1]]),
)
add(
    "conv2d_nhwc",
    {"x": floats(2, 5, 6, 3)},
    lambda f, x: f.layers.conv2d(x, 4, 3, data_format="NHWC"),
)
add(
    "conv2d_depthwise",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.conv2d(x, 6, 3, groups=3, use_cudnn=False),
)
add("pool2d", {"x": floats(2, 3, 5, 6)}, lambda f, x: f.layers.pool2d(x, 2, "max", 2))
add("pool2d_avg_pad", {"x": floats(2, 3, 5, 6)}, lambda f, x: f.layers.pool2d(x, 3, "avg", 2, 1))
add(
    "pool2d_avg_incl",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.pool2d(x, 3, "avg", 2, 1, exclusive=False),
)
add(
    "pool2d_ceil",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.pool2d(x, 2, "avg", 2, ceil_mode=True),
)
add(
    "pool2d_ceil_pad",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.pool2d(x, 3, "avg", 2, 1, ceil_mode=True, exclusive=False),
)
add(
    "pool2d_max_pad",
    {"x": floats(2, 3, 5, 6) - 2},
    lambda f, x: f.layers.pool2d(x, 3, "max", 2, 1, ceil_mode=True),
)
add(
    "pool2d_global",
    {"x": floats(2, 3, 5, 6)},
    lambda f, x: f.layers.pool2d(x, pool_type="avg", global_pooling=True),
)
add("pool2d_same", {"x": floats(2, 3, 5, 6)}, lambda f, x: f.layers.pool2d(x, 3, "avg", 2, "SAME"))
add(
    "pool2d_nhwc",
    {"x": floats(2, 5, 6, 3)},
    lambda f, x: f.layers.pool2d(x, 2, "max", 2, data_format="NHWC"),
)
add(
    "simple_img_conv_pool",
    {"x": floats(2, 3, 6, 6)},
    lambda f, x: f.nets.simple_img_conv_pool(x, 4, 3, 2, 2, act="relu"),
)
add("conv3d", VOLUMES, lambda f, x: f.layers.conv3d(x, 3, 2, stride=2, padding=1, act="relu"))
add("pool3d", VOLUMES, lambda f, x: f.layers.pool3d(x, 2, "avg", 2, ceil_mode=True))
add(
    "conv2d_transpose",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(x, 3, filter_size=3, stride=2, padding=1),
)
add(
    "conv2d_transpose_size",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(x, 3, output_size=[10, 12], stride=2, padding=1),
)
add(
    "conv2d_transpose_both",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(
        x, 3, output_size=[10, 12], filter_size=3, stride=2, padding=1
    ),
)
add(
    "conv2d_transpose_groups",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(
        x, 4, filter_size=3, groups=2, dilation=2, bias_attr=False
    ),
)
add(
    "conv2d_transpose_same",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(x, 4, filter_size=3, stride=2, padding="SAME"),
)
add(
    "conv2d_transpose_dw",
    PICTURES,
    lambda f, x: f.layers.conv2d_transpose(x, 4, filter_size=3, groups=4, use_cudnn=False),
)
add(
    "conv3d_transpose",
    VOLUMES,
    lambda f, x: f.layers.conv3d_transpose(x, 3, filter_size=2, stride=2),
)
add("adaptive_pool2d_max", PICTURES, lambda f, x: f.layers.adaptive_pool2d(x, 3))
add("adaptive_pool2d_avg", PICTURES, lambda f, x: f.layers.adaptive_pool2d(x, [2, 4], "avg"))
add(
    "adaptive_pool2d_index",
    PICTURES,
    lambda f, x: f.layers.adaptive_pool2d(x, [2, 4], require_index=True),
    forward_only=True,
)
add("adaptive_pool3d", VOLUMES, lambda f, x: f.layers.adaptive_pool3d(x, 2, "avg"))
for c in (True, False):
    for m in (0, 1):
        add(
            f"resize_bilinear_{c:d}_{m:d}",
            PICTURES,
            lambda f, x, c=c, m=m: f.layers.resize_bilinear(
                x, [8, 7], align_corners=c, align_mode=m
            ),
        )
        add(
            f"resize_trilinear_{c:d}_{m:d}",
            VOLUMES,
            lambda f, x, c=c, m=m: f.layers.resize_trilinear(
                x, [3, 7, 6], align_corners=c, align_mode=m
            ),
        )
    add(
        f"resize_nearest_{c:d}",
        PICTURES,
        lambda f, x, c=c: f.layers.resize_nearest(x, [8, 7], align_corners=c),
    )
add("image_resize_scale", PICTURES, lambda f, x: f.layers.image_resize(x, scale=1.5))
add(
    "image_resize_nhwc", PICTURES, lambda f, x: f.layers.image_resize(x, [3, 3], data_format="NHWC")
)
add("image_resize_short", PICTURES, lambda f, x: f.layers.image_resize_short(x, 7), whole=True)
add(
    "image_resize_tensor",
    {"x": floats(2, 3, 4, 4), "s": np.array([6, 5], "int32")},
    lambda f, x, s: f.layers.image_resize(x, s),
    whole=True,
)
add(
    "grid_sampler",
    {"x": floats(2, 3, 4, 5), "g": floats(2, 4, 5, 2, seed=6) * 1.3},
    lambda f, x, g: f.layers.grid_sampler(x, g),
)
add("affine_grid", {"t": floats(2, 2, 3)}, lambda f, t: f.layers.affine_grid(t, [2, 3, 4, 5]))
add(
    "affine_channel",
    {"x": floats(2, 4, 5, 6), "s": floats(4), "b": floats(4, seed=9)},
    lambda f, x, s, b: f.layers.affine_channel(x, s, b, act="relu"),
    whole=True,
)
add("pixel_shuffle", PICTURES, lambda f, x: f.layers.pixel_shuffle(x, 2))
add(
    "space_to_depth",
    {"x": floats(2, 4, 4, 6)},
    lambda f, x: f.layers.space_to_depth(x, 2),
    whole=True,
)
add("shuffle_channel", PICTURES, lambda f, x: f.layers.shuffle_channel(x, 2))
add("temporal_shift", {"x": floats(4, 8, 2, 2)}, lambda f, x: f.layers.temporal_shift(x, 2))
add("unfold", PICTURES, lambda f, x: f.layers.unfold(x, [3, 2], 2, 1, 1), whole=True)
add(
    "img_conv_group",
    {"x": floats(2, 3, 6, 6)},
    lambda f, x: f.nets.img_conv_group(x, [2, 2], 2, conv_act="relu", pool_stride=2),
)
add(
    "img_conv_group_bn",
    {"x": floats(2, 3, 6, 6)},
    lambda f, x: f.nets.img_conv_group(
        x, [2, 2], 2, conv_act="relu", conv_with_batchnorm=True, pool_stride=2
    ),
)
for m in ["constant", "reflect", "edge"]:
    add("pad2d_" + m, PICTURES, lambda f, x, m=m: f.layers.pad2d(x, [1, 2, 0, 1], m, 0.5))
