from __future__ import annotations
import numpy as np
from .case import add, floats, ints

X = {"x": floats(4, 3) * 3}
X3 = {"x": floats(2, 3, 4)}
X4 = {"x": floats(2, 4, 5, 6)}
X5 = {"x": floats(2, 2, 4, 5, 4)}
L = {"x": [[2, 1, 3]]}
for n in "hard_shrink softshrink thresholded_relu hard_swish stanh selu".split():
    add(n, X, lambda f, x, n=n: getattr(f.layers, n)(x))
add("mish", X, lambda f, x: f.layers.nn.mish(x))
add("log1p", {"x": floats(4, 3, low=0.1, high=2)}, lambda f, x: f.layers.log1p(x))
for m in "all channel element".split():
    add("prelu_" + m, X4, lambda f, x, m=m: f.layers.prelu(x, m))
add("maxout", X4, lambda f, x: f.layers.maxout(x, 2))
add(
    "slice_tensor",
    {"x": floats(4, 3), "s": np.array([1], "int32")},
    lambda f, x, s: f.layers.slice(x, [0, 1], [s, 0], [3, 2]),
    whole=True,
)
add(
    "slice_whole_tensor",
    {"x": floats(4, 3), "s": np.array([1, 0], "int32"), "e": np.array([3, 2], "int32")},
    lambda f, x, s, e: f.layers.slice(x, [0, 1], s, e),
    whole=True,
)
add(
    "item_tensor",
    {"x": floats(4, 3), "s": np.array([1], "int32")},
    lambda f, x, s: x[s],
    whole=True,
)
add("strided_slice", X3, lambda f, x: f.layers.strided_slice(x, [1, 2], [0, 3], [3, 0], [2, -1]))
add("crop_tensor", X3, lambda f, x: f.layers.crop_tensor(x, [-1, 2, 2], [0, 1, 1]))
add("crop", X3, lambda f, x: f.layers.crop(x, [2, 2, 2], [0, 1, 1]))
add(
    "reshape_tensor",
    {"x": floats(4, 6), "s": np.array([2], "int32")},
    lambda f, x, s: f.layers.reshape(x, [-1, s, 3]),
    whole=True,
)
add(
    "reshape_shape",
    {"x": floats(4, 6), "s": np.array([8, 3], "int32")},
    lambda f, x, s: f.layers.reshape(x, s),
    whole=True,
)
add(
    "reshape_actual",
    {"x": floats(4, 6), "s": np.array([8, 3], "int32")},
    lambda f, x, s: f.layers.reshape(x, [-1, 3], actual_shape=s),
    whole=True,
)
add(
    "expand_tensor",
    {"x": floats(4, 3), "s": np.array([2], "int32")},
    lambda f, x, s: f.layers.expand(x, [s, 2]),
    whole=True,
)
add(
    "expand_as",
    {"x": floats(4, 1), "y": floats(4, 3)},
    lambda f, x, y: f.layers.expand_as(x, y),
    whole=True,
)
add(
    "fill_constant_tensor",
    {"s": np.array([2], "int32")},
    lambda f, s: f.layers.fill_constant([s, 3], "float32", 1.5),
    whole=True,
    forward_only=True,
)
add("conv3d", X5, lambda f, x: f.layers.conv3d(x, 3, 2, stride=2, padding=1, act="relu"))
add("pool3d", X5, lambda f, x: f.layers.pool3d(x, 2, "avg", 2, ceil_mode=True))
add(
    "conv2d_transpose",
    X4,
    lambda f, x: f.layers.conv2d_transpose(x, 3, filter_size=3, stride=2, padding=1),
)
add(
    "conv2d_transpose_size",
    X4,
    lambda f, x: f.layers.conv2d_transpose(x, 3, output_size=[10, 12], stride=2, padding=1),
)
add(
    "conv2d_transpose_both",
    X4,
    lambda f, x: f.layers.conv2d_transpose(
        x, 3, output_size=[10, 12], filter_size=3, stride=2, padding=1
    ),
)
add(
    "conv2d_transpose_groups",
    X4,
    lambda f, x: f.layers.conv2d_transpose(
        x, 4, filter_size=3, groups=2, dilation=2, bias_attr=False
    ),
)
add(
    "conv2d_transpose_same",
    X4,
    lambda f, x: f.layers.conv2d_transpose(x, 4, filter_size=3, stride=2, padding="SAME"),
)
add(
    "conv2d_transpose_dw",
    X4,
    lambda f, x: f.layers.conv2d_transpose(x, 4, filter_size=3, groups=4, use_cudnn=False),
)
add("conv3d_transpose", X5, lambda f, x: f.layers.conv3d_transpose(x, 3, filter_size=2, stride=2))
add("adaptive_pool2d_max", X4, lambda f, x: f.layers.adaptive_pool2d(x, 3))
add("adaptive_pool2d_avg", X4, lambda f, x: f.layers.adaptive_pool2d(x, [2, 4], "avg"))
add(
    "adaptive_pool2d_index",
    X4,
    lambda f, x: f.layers.adaptive_pool2d(x, [2, 4], require_index=True),
    forward_only=True,
)
add("adaptive_pool3d", X5, lambda f, x: f.layers.adaptive_pool3d(x, 2, "avg"))
for c in (True, False):
    for m in (0, 1):
        add(
            "resize_bilinear_%d_%d" % (c, m),
            X4,
            lambda f, x, c=c, m=m: f.layers.resize_bilinear(
                x, [8, 7], align_corners=c, align_mode=m
            ),
        )
        add(
            "resize_trilinear_%d_%d" % (c, m),
            X5,
            lambda f, x, c=c, m=m: f.layers.resize_trilinear(
                x, [3, 7, 6], align_corners=c, align_mode=m
            ),
        )
    add(
        "resize_nearest_%d" % c,
        X4,
        lambda f, x, c=c: f.layers.resize_nearest(x, [8, 7], align_corners=c),
    )
add("image_resize_scale", X4, lambda f, x: f.layers.image_resize(x, scale=1.5))
add("image_resize_nhwc", X4, lambda f, x: f.layers.image_resize(x, [3, 3], data_format="NHWC"))
add("image_resize_short", X4, lambda f, x: f.layers.image_resize_short(x, 7), whole=True)
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
add("pixel_shuffle", X4, lambda f, x: f.layers.pixel_shuffle(x, 2))
add(
    "space_to_depth",
    {"x": floats(2, 4, 4, 6)},
    lambda f, x: f.layers.space_to_depth(x, 2),
    whole=True,
)
add("shuffle_channel", X4, lambda f, x: f.layers.shuffle_channel(x, 2))
add("temporal_shift", {"x": floats(4, 8, 2, 2)}, lambda f, x: f.layers.temporal_shift(x, 2))
add("unfold", X4, lambda f, x: f.layers.unfold(x, [3, 2], 2, 1, 1), whole=True)
add("group_norm", X4, lambda f, x: f.layers.group_norm(x, 2))
add(
    "group_norm_nhwc",
    {"x": floats(2, 5, 6, 4)},
    lambda f, x: f.layers.group_norm(x, 2, data_layout="NHWC", act="tanh"),
)
add("instance_norm", X4, lambda f, x: f.layers.instance_norm(x))
add("lrn", X4, lambda f, x: f.layers.lrn(x, n=3, alpha=0.5))
add("data_norm", X, lambda f, x: f.layers.data_norm(x))
add(
    "data_norm_slot",
    {"x": np.array([[0, 0.5, 1, 2], [1, 2, 0, 3], [2, 1, 0, 1]], "float32")},
    lambda f, x: f.layers.data_norm(
        x, slot_dim=2, param_attr={"batch_size": 10.0, "batch_sum": 3.0, "batch_square": 20.0}
    ),
)
add(
    "spectral_norm",
    {"x": floats(4, 3)},
    lambda f, x: f.layers.shape(f.layers.spectral_norm(x)),
    whole=True,
    forward_only=True,
)
Z = {
    "l": ints(4, 1, high=2).astype("float32"),
    "x": floats(4, 1) * 3,
    "y": floats(4, 1, seed=3) * 3,
}
add("rank_loss", Z, lambda f, l, x, y: f.layers.rank_loss(l, x, y))
add(
    "margin_rank_loss",
    {"l": np.array([[1], [-1], [1], [-1]], "float32"), "x": Z["x"], "y": Z["y"]},
    lambda f, l, x, y: f.layers.margin_rank_loss(l, x, y),
)
for r in "mean sum batchmean none".split():
    add(
        "kldiv_loss_" + r,
        {"x": floats(4, 3, low=-2, high=-0.1), "t": floats(4, 3, low=0, high=1)},
        lambda f, x, t, r=r: f.layers.kldiv_loss(x, t, r),
    )
add("smooth_l1", {"x": X["x"], "y": floats(4, 3, seed=9)}, lambda f, x, y: f.layers.smooth_l1(x, y))
add(
    "smooth_l1_sigma",
    {"x": X["x"], "y": floats(4, 3, seed=9), "i": floats(4, 3, seed=5), "o": floats(4, 3, seed=6)},
    lambda f, x, y, i, o: f.layers.smooth_l1(x, y, i, o, 2.0),
)
add(
    "teacher_student",
    {
        "x": np.array([[-1.0], [0.5], [2], [-0.3], [20], [-18]], "float32"),
        "l": np.array([[-2], [-1], [0.3], [1.6], [0.2], [-1]], "float32"),
    },
    lambda f, x, l: f.layers.teacher_student_sigmoid_loss(x, l),
)
add(
    "sigmoid_focal",
    {"x": floats(4, 3), "l": np.array([[0], [1], [3], [-1]], "int32"), "n": np.array([2], "int32")},
    lambda f, x, l, n: f.layers.sigmoid_focal_loss(x, l, n),
    whole=True,
)
add(
    "center_loss",
    {"x": floats(4, 3), "l": ints(4, 1, high=3)},
    lambda f, x, l: f.layers.center_loss(x, l, 3, 0.1, None),
    forward_only=False,
)
add(
    "dice_loss",
    {"x": floats(4, 3, low=0, high=1), "l": ints(4, 1, high=3)},
    lambda f, x, l: f.layers.dice_loss(x, l),
)
add(
    "npair_loss",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4), "l": np.array([0, 1, 0, 2], "int64")},
    lambda f, x, y, l: f.layers.npair_loss(x, y, l),
    whole=True,
)
add(
    "hsigmoid",
    {"x": floats(4, 3), "l": ints(4, 1, high=6)},
    lambda f, x, l: f.layers.hsigmoid(x, l, 6),
)
add(
    "hsigmoid_8",
    {"x": floats(4, 3), "l": ints(4, 1, high=8)},
    lambda f, x, l: f.layers.hsigmoid(x, l, 8),
)
add(
    "hsigmoid_custom",
    {
        "x": floats(4, 3),
        "l": ints(4, 1, high=5),
        "t": np.array([[0, 2, -1], [0, 1, 3], [0, 1, 4], [0, 2, -1]]),
        "c": np.array([[0, 0, -1], [1, 1, 0], [1, 0, 1], [0, 1, -1]]),
    },
    lambda f, x, l, t, c: f.layers.hsigmoid(x, l, 5, path_table=t, path_code=c, is_custom=True),
)
add(
    "sampled_softmax",
    {
        "x": floats(3, 6),
        "l": np.array([[1], [0], [5]]),
        "s": np.array([[1, 0, 2, 1], [0, 3, 4, 5], [5, 2, 1, 0]]),
        "p": floats(3, 4, low=0.1, high=0.9),
    },
    lambda f, x, l, s, p: f.layers.sampled_softmax_with_cross_entropy(
        x, l, 3, use_customized_samples=True, customized_samples=s, customized_probabilities=p
    ),
)
add(
    "sequence_mask",
    {"x": np.array([2, 0, 3])},
    lambda f, x: f.layers.sequence_mask(x, maxlen=4, dtype="float32"),
    forward_only=True,
)
add(
    "sequence_mask_col",
    {"x": np.array([[2], [0], [3]])},
    lambda f, x: f.layers.sequence_mask(x, maxlen=4),
    forward_only=True,
)
add(
    "sequence_mask_long",
    {"x": np.array([2, 0, 3])},
    lambda f, x: f.layers.sequence_mask(x),
    forward_only=True,
)
add("sequence_reverse", {"x": floats(6, 3)}, lambda f, x: f.layers.sequence_reverse(x), lod=L)
add(
    "sequence_enumerate",
    {"x": ints(6, 1, high=9)},
    lambda f, x: f.layers.sequence_enumerate(x, 2, 7),
    lod=L,
    forward_only=True,
)
add(
    "sequence_slice",
    {"x": floats(6, 3), "o": np.array([[1], [0], [0]]), "n": np.array([[1], [1], [2]])},
    lambda f, x, o, n: f.layers.sequence_slice(x, o, n),
    lod=L,
)
add(
    "sequence_scatter",
    {"x": floats(3, 5), "i": np.array([[0], [1], [2], [4], [4], [0]]), "u": floats(6, 1)},
    lambda f, x, i, u: f.layers.sequence_scatter(x, i, u),
    lod={"i": [[2, 1, 3]], "u": [[2, 1, 3]]},
)
add("row_conv", {"x": floats(6, 3)}, lambda f, x: f.layers.row_conv(x, 2), lod=L)
add("row_conv_3d", {"x": floats(2, 4, 3)}, lambda f, x: f.layers.row_conv(x, 2))
add(
    "lod_append",
    {"x": floats(6, 3)},
    lambda f, x: f.layers.lod_append(x, [0, 1, 2, 3, 4, 5, 6]),
    lod=L,
)
add(
    "add_position_encoding",
    {"x": floats(6, 4)},
    lambda f, x: f.layers.add_position_encoding(x, 0.5, 2.0),
    lod=L,
)
add(
    "add_position_encoding_3d",
    {"x": floats(2, 3, 6)},
    lambda f, x: f.layers.add_position_encoding(x, 0.5, 2.0),
)
add("im2sequence", X4, lambda f, x: f.layers.im2sequence(x, [2, 2], [2, 2]))
add("im2sequence_pad", X4, lambda f, x: f.layers.im2sequence(x, [2, 3], [2, 2], [1, 0, 1, 1]))
add(
    "ctc_greedy",
    {"x": floats(6, 4)},
    lambda f, x: f.layers.ctc_greedy_decoder(x, 0),
    lod=L,
    forward_only=True,
)
add(
    "ctc_greedy_pad",
    {"x": floats(2, 4, 3), "n": np.array([[4], [2]])},
    lambda f, x, n: f.layers.ctc_greedy_decoder(x, 0, n, -1),
    forward_only=True,
)
add(
    "unique",
    {"x": np.array([2, 3, 3, 1, 5, 3])},
    lambda f, x: f.layers.unique(x),
    forward_only=True,
)
add(
    "unique_with_counts",
    {"x": np.array([2, 3, 3, 1, 5, 3])},
    lambda f, x: f.layers.unique_with_counts(x),
    forward_only=True,
)
add(
    "scatter_nd_add",
    {"x": floats(3, 5), "i": np.array([[1, 1], [0, 1], [1, 1]]), "u": floats(3, seed=4)},
    lambda f, x, i, u: f.layers.scatter_nd_add(x, i, u),
)
add(
    "scatter_nd",
    {"i": np.array([[1, 1], [0, 1], [1, 1]]), "u": floats(3, seed=4)},
    lambda f, i, u: f.layers.scatter_nd(i, u, [3, 4]),
)
add(
    "index_select",
    {"x": floats(3, 5), "i": np.array([2, 0, 2])},
    lambda f, x, i: f.layers.index_select(x, i, dim=1),
)
add(
    "index_sample",
    {"x": floats(3, 5), "i": np.array([[2, 0], [1, 1], [4, 0]])},
    lambda f, x, i: f.layers.index_sample(x, i),
)
add(
    "multiplex",
    {"x": floats(4, 3), "y": floats(4, 3, seed=5), "i": np.array([[1], [0], [1], [0]], "int32")},
    lambda f, x, y, i: f.layers.multiplex([x, y], i),
)
add(
    "shard_index",
    {"x": np.array([[1], [6], [12], [19]])},
    lambda f, x: f.layers.shard_index(x, 20, 2, 0),
    forward_only=True,
)


def hash_of(f, x, size, count):
    helper = f.layer_helper.LayerHelper("hash")
    out = helper.create_variable_for_type_inference("int64")
    helper.append_op(
        type="hash",
        inputs={"X": x},
        outputs={"Out": out},
        attrs={"num_hash": count, "mod_by": size},
    )
    return out


add(
    "hash",
    {"x": ints(5, 1, high=1000)},
    lambda f, x: hash_of(f, x, 10000, 3),
    lod={"x": [[2, 3]]},
    forward_only=True,
)
add(
    "hash_2", {"x": ints(5, 2, high=1000)}, lambda f, x: hash_of(f, x, 100003, 2), forward_only=True
)
add(
    "hash_9",
    {"x": ints(5, 9, high=1000)},
    lambda f, x: hash_of(f, x, 1 << 40, 2),
    forward_only=True,
)
add(
    "hash_i32",
    {"x": ints(5, 3, high=1000, dtype="int32")},
    lambda f, x: hash_of(f, x, 1 << 20, 2),
    forward_only=True,
)
add(
    "gather_tree",
    {"i": ints(3, 2, 2, high=9), "p": ints(3, 2, 2, high=2, seed=8)},
    lambda f, i, p: f.layers.gather_tree(i, p),
    forward_only=True,
)
add(
    "mean_iou",
    {"x": ints(4, 3, high=3, dtype="int32"), "l": ints(4, 3, high=3, seed=6, dtype="int32")},
    lambda f, x, l: f.layers.mean_iou(x, l, 3),
    forward_only=True,
)
add("roll", X, lambda f, x: f.layers.roll(x, 1, 0))
add("roll_flat", X, lambda f, x: f.layers.roll(x, 2), whole=True)
add(
    "bilinear",
    {"x": floats(4, 3), "y": floats(4, 5, seed=3)},
    lambda f, x, y: f.layers.bilinear_tensor_product(x, y, 6, act="tanh"),
)
add(
    "fsp",
    {"x": floats(2, 3, 4, 5), "y": floats(2, 2, 4, 5)},
    lambda f, x, y: f.layers.fsp_matrix(x, y),
)
add(
    "addmm",
    {"i": floats(3, 3), "x": floats(3, 4), "y": floats(4, 3)},
    lambda f, i, x, y: f.layers.addmm(i, x, y, 0.5, 2.0),
    whole=True,
)
add(
    "addcmul",
    {"i": floats(3, 3), "x": floats(3, 3), "y": floats(3, 3, seed=9)},
    lambda f, i, x, y: f.layers.addcmul(i, x, y, 0.5),
)
add("bmm", {"x": floats(2, 3, 4), "y": floats(2, 4, 3)}, lambda f, x, y: f.layers.bmm(x, y))
add("dot", {"x": floats(3, 4), "y": floats(3, 4, seed=4)}, lambda f, x, y: f.layers.dot(x, y))
add(
    "cross",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.layers.cross(x, y, dim=1),
)
add(
    "kron",
    {"x": floats(2, 3), "y": floats(3, 2, seed=4)},
    lambda f, x, y: f.layers.kron(x, y),
    whole=True,
)
add("dist", {"x": floats(2, 3), "y": floats(2, 3, seed=4)}, lambda f, x, y: f.layers.dist(x, y, 2))
add("t", {"x": floats(2, 3)}, lambda f, x: f.layers.t(x))
add("clamp", X, lambda f, x: f.layers.clamp(x, min=0.1))
add("clip_by_norm", X, lambda f, x: f.layers.clip_by_norm(x, 1.0), forward_only=True)
add(
    "finite",
    X,
    lambda f, x: [f.layers.isfinite(x), f.layers.has_inf(x), f.layers.has_nan(x)],
    forward_only=True,
)
add("rank", X3, lambda f, x: f.layers.rank(x), forward_only=True)
add("size", X3, lambda f, x: f.layers.size(x), forward_only=True)
add("logsumexp", X3, lambda f, x: f.layers.logsumexp(x, dim=1, keepdim=True))
add("logsumexp_all", X3, lambda f, x: f.layers.logsumexp(x))
add("log_softmax", X3, lambda f, x: f.layers.log_softmax(x, axis=1))
add("diag", {"x": floats(3)}, lambda f, x: f.layers.diag(x), whole=True, forward_only=True)
add("diag_embed", {"x": floats(2, 3)}, lambda f, x: f.layers.diag_embed(x, offset=1))
add("tril", {"x": floats(4, 4)}, lambda f, x: f.layers.tril(x, -1))
add("triu", {"x": floats(4, 4)}, lambda f, x: f.layers.triu(x, 1))
add("trace", {"x": floats(4, 4)}, lambda f, x: f.layers.trace(x, 1), whole=True)
add(
    "meshgrid",
    {"x": floats(3), "y": floats(2)},
    lambda f, x, y: f.layers.meshgrid([x, y]),
    whole=True,
)
add("flip", X3, lambda f, x: f.layers.flip(x, [1, 2]))
for m in "constant reflect edge".split():
    add("pad2d_" + m, X4, lambda f, x, m=m: f.layers.pad2d(x, [1, 2, 0, 1], m, 0.5))
add(
    "pad_constant_like",
    {"x": floats(4, 3), "y": floats(2, 2)},
    lambda f, x, y: f.layers.pad_constant_like(x, y, 1.5),
    whole=True,
)
add(
    "full",
    X,
    lambda f, x: [f.layers.full([2, 3], 4, dtype="int64"), f.layers.full_like(x, 2.5)],
    forward_only=True,
)
add(
    "range",
    X,
    lambda f, x: [f.layers.range(0, 10, 3, "int64"), f.layers.range(1.0, 0.0, -0.3, "float32")],
    forward_only=True,
)
add("arange", X, lambda f, x: f.layers.arange(0, 5, 2, "int64"), forward_only=True)
add("linspace", X, lambda f, x: f.layers.linspace(0, 10, 5, "float32"), forward_only=True)
add("eye", X, lambda f, x: [f.layers.eye(3), f.layers.eye(2, 3, [2], "int32")], forward_only=True)
add(
    "cvm",
    {"x": floats(4, 5, low=0.1, high=3), "c": floats(4, 2, low=0, high=2)},
    lambda f, x, c: f.layers.continuous_value_model(x, c, True),
)
add(
    "cvm_no",
    {"x": floats(4, 5, low=0.1, high=3), "c": floats(4, 2, low=0, high=2)},
    lambda f, x, c: f.layers.continuous_value_model(x, c, False),
)
TREE = np.array(
    [
        [0, 0, 0, 1, 2],
        [0, 1, 0, 3, 4],
        [0, 1, 0, 5, 6],
        [1, 2, 1, 0, 0],
        [2, 2, 1, 0, 0],
        [3, 2, 2, 0, 0],
        [4, 2, 2, 0, 0],
    ],
    "int32",
)


def tree_attr(f, a):
    return f.ParamAttr(trainable=False, initializer=f.initializer.NumpyArrayInitializer(a))


add(
    "tdm_child",
    {"x": np.array([[2], [3], [0], [1]], "int32")},
    lambda f, x: f.contrib.layers.tdm_child(x, 7, 2, tree_attr(f, TREE)),
    forward_only=True,
)
add(
    "tdm_child_2d",
    {"x": np.array([[2, 3], [0, 1]], "int32")},
    lambda f, x: f.contrib.layers.tdm_child(x, 7, 2, tree_attr(f, TREE)),
    forward_only=True,
)
add(
    "tdm_sampler_none",
    {"x": np.array([[0], [1], [3]], "int32")},
    lambda f, x: sum(
        [
            list(p)
            for p in f.contrib.layers.tdm_sampler(
                x,
                [1, 0],
                [2, 4],
                4,
                tree_attr(f, np.array([[1, 3], [1, 4], [2, 5], [2, 6]], "int32")),
                tree_attr(f, np.array([[1], [2], [3], [4], [5], [6]], "int32")),
            )
        ],
        [],
    ),
    forward_only=True,
)
add(
    "filter_by_instag",
    {"x": floats(6, 3), "t": ints(4, 1, high=3), "f": np.array([1])},
    lambda f, x, t, g: f.layers.filter_by_instag(x, t, g, True),
    lod={"x": [[2, 1, 3]], "t": [[1, 1, 2]]},
    whole=True,
    forward_only=True,
)
add(
    "filter_by_instag_none",
    {"x": floats(6, 3), "t": ints(4, 1, high=3), "f": np.array([9])},
    lambda f, x, t, g: f.layers.filter_by_instag(x, t, g, True),
    lod={"x": [[2, 1, 3]], "t": [[1, 1, 2]]},
    whole=True,
    forward_only=True,
)
add(
    "partial_concat",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.partial_concat([x, y], 1, 2),
)
add(
    "partial_sum",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.partial_sum([x, y], 1, 2),
)
add(
    "fused_elemwise_activation",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.fused_elemwise_activation(x, y, ["elementwise_add", "relu"]),
)
add(
    "fused_elemwise_activation2",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.fused_elemwise_activation(x, y, ["tanh", "elementwise_add"]),
)
add(
    "fused_embedding_seq_pool",
    {"x": ints(6, 1, high=5)},
    lambda f, x: f.contrib.layers.fused_embedding_seq_pool(x, [5, 3]),
    lod=L,
)
add(
    "ctr_metric_bundle",
    {"x": floats(4, 1, low=0.1, high=0.9), "l": ints(4, 1, high=2).astype("float32")},
    lambda f, x, l: f.contrib.layers.ctr_metric_bundle(x, l),
    forward_only=True,
)
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
add("glu", {"x": floats(4, 6)}, lambda f, x: f.nets.glu(x))
add(
    "attention",
    {"q": floats(2, 3, 4), "k": floats(2, 5, 4, seed=2), "v": floats(2, 5, 6, seed=3)},
    lambda f, q, k, v: f.nets.scaled_dot_product_attention(q, k, v, 2),
    whole=True,
)
add(
    "attention_1",
    {"q": floats(2, 3, 4), "k": floats(2, 5, 4, seed=2), "v": floats(2, 5, 6, seed=3)},
    lambda f, q, k, v: f.nets.scaled_dot_product_attention(q, k, v),
    whole=True,
)
add(
    "topk_tensor",
    {"x": floats(4, 3), "k": np.array([2], "int32")},
    lambda f, x, k: f.layers.topk(x, k),
    whole=True,
    forward_only=True,
)
add(
    "pow_tensor",
    {"x": floats(4, 3, low=0.1, high=2), "k": np.array([1.5], "float32")},
    lambda f, x, k: f.layers.pow(x, k),
    whole=True,
)
add(
    "scale_tensor",
    {"x": floats(4, 3), "k": np.array([1.5], "float32")},
    lambda f, x, k: f.layers.scale(x, k, 0.5),
    whole=True,
)
add(
    "mod_float",
    {"x": floats(4, 3) * 5, "y": floats(4, 3, seed=4) * 2},
    lambda f, x, y: f.layers.elementwise_mod(x, y),
    forward_only=True,
)
add(
    "autoincreased_step_counter",
    X,
    lambda f, x: f.layers.autoincreased_step_counter(begin=3, step=2),
    forward_only=True,
)
add(
    "elementwise_equal",
    {"x": ints(4, 3, high=3), "y": ints(4, 3, high=3, seed=7)},
    lambda f, x, y: f.layers.elementwise_equal(x, y),
    forward_only=True,
)
add("nonzero", {"x": ints(4, 3, high=2)}, lambda f, x: f.layers.nonzero(x), forward_only=True)
add(
    "inplace_abn",
    X4,
    lambda f, x: f.layers.inplace_abn(x, act="leaky_relu", act_alpha=0.2),
    forward_only=True,
)
# what keeps its sequences
S = {"x": floats(6, 4)}
for name, build in {
    "scale": lambda f, x: f.layers.scale(x, 2.0),
    "softmax": lambda f, x: f.layers.softmax(x),
    "cast": lambda f, x: f.layers.cast(x, "float64"),
    "reshape": lambda f, x: f.layers.reshape(x, [-1, 2]),
    "reshape3": lambda f, x: f.layers.reshape(x, [-1, 2, 2]),
    "transpose": lambda f, x: f.layers.transpose(x, [1, 0]),
    "squeeze": lambda f, x: f.layers.squeeze(f.layers.unsqueeze(x, [1]), [1]),
    "flatten": lambda f, x: f.layers.flatten(x),
    "split": lambda f, x: f.layers.split(x, 2, 1),
    "stack": lambda f, x: f.layers.stack([x, x]),
    "slice": lambda f, x: f.layers.slice(x, [1], [0], [2]),
    "slice0": lambda f, x: f.layers.slice(x, [0], [0], [2]),
    "expand": lambda f, x: f.layers.expand(x, [1, 2]),
    "matmul": lambda f, x: f.layers.matmul(x, x, transpose_y=True),
    "topk": lambda f, x: f.layers.topk(x, 2)[0],
    "argmax": lambda f, x: f.layers.argmax(x, 1),
    "cumsum": lambda f, x: f.layers.cumsum(x),
    "concat0": lambda f, x: f.layers.concat([x, x]),
    "pad": lambda f, x: f.layers.pad(x, [0, 0, 1, 1]),
    "clip": lambda f, x: f.layers.clip(x, 0.0, 1.0),
    "layer_norm": lambda f, x: f.layers.layer_norm(x),
    "batch_norm": lambda f, x: f.layers.batch_norm(x),
    "dropout": lambda f, x: f.layers.dropout(x, 0.0),
    "add": lambda f, x: f.layers.elementwise_add(x, x),
    "mean": lambda f, x: f.layers.mean(x),
    "reduce0": lambda f, x: f.layers.reduce_sum(x, 0),
    "reduce1": lambda f, x: f.layers.reduce_mean(x, 1),
    "reduce_neg": lambda f, x: f.layers.reduce_max(x, -1),
    "l2": lambda f, x: f.layers.l2_normalize(x, 1),
    "square_error": lambda f, x: f.layers.square_error_cost(x, x),
    "bce": lambda f, x: f.layers.sigmoid_cross_entropy_with_logits(x, x),
    "less": lambda f, x: f.layers.less_than(x, x),
    "fill": lambda f, x: f.layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 0.0),
    "zeros_like": lambda f, x: f.layers.zeros_like(x),
    "sums": lambda f, x: f.layers.sums([x, x]),
    "assign": lambda f, x: f.layers.assign(x),
    "reverse": lambda f, x: f.layers.reverse(x, 1),
    "gather": lambda f, x: f.layers.gather(x, f.layers.fill_constant([2], "int32", 1)),
    "argsort": lambda f, x: f.layers.argsort(x)[0],
    "mul2": lambda f, x: x * 2.0,
    "unsqueeze": lambda f, x: f.layers.unsqueeze(x, [2]),
    "getitem": lambda f, x: x[:, 0:2],
    "prelu": lambda f, x: f.layers.prelu(x, "all"),
    "sum_reduce_all": lambda f, x: f.layers.reduce_sum(x),
    "huber": lambda f, x: f.layers.smooth_l1(x, x),
    "cos_sim": lambda f, x: f.layers.cos_sim(x, x),
    "scatter_nd_add": lambda f, x: f.layers.log_softmax(x),
    "unstack": lambda f, x: f.layers.unstack(x, 1)[0],
    "label_smooth": lambda f, x: f.layers.label_smooth(x),
    "pool2": lambda f, x: f.layers.sequence_pool(f.layers.reduce_sum(x, 1, keep_dim=True), "sum"),
}.items():
    add("lod " + name, S, build, lod={"x": [[2, 1, 3]]}, forward_only=True)
