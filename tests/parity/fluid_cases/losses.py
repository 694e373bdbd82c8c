"""Losses."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints
from .inputs import CHANCES, CUBE, PAIR, PLAIN, WIDE

RANKED = {
    "l": ints(4, 1, high=2).astype("float32"),
    "x": floats(4, 1) * 3,
    "y": floats(4, 1, seed=3) * 3,
}

add("cross_entropy", CHANCES, lambda f, x, y: f.layers.cross_entropy(x, y))
add(
    "cross_entropy_ignore",
    {"x": CHANCES["x"], "y": np.array([[0], [1], [-100], [2]])},
    lambda f, x, y: f.layers.cross_entropy(x, y),
)
add("cross_entropy_ignore1", CHANCES, lambda f, x, y: f.layers.cross_entropy(x, y, ignore_index=1))
add(
    "cross_entropy_soft",
    {"x": CHANCES["x"], "y": CHANCES["x"][::-1].copy()},
    lambda f, x, y: f.layers.cross_entropy(x, y, soft_label=True),
)
add(
    "cross_entropy_3d",
    {"x": np.stack([CHANCES["x"], CHANCES["x"]]), "y": ints(2, 4, 1, high=3)},
    lambda f, x, y: f.layers.cross_entropy(x, y),
)
add(
    "softmax_ce",
    {"x": floats(4, 3), "y": ints(4, 1, high=3)},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y),
)
add(
    "softmax_ce_ret",
    {"x": floats(4, 3), "y": ints(4, 1, high=3)},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y, return_softmax=True)[0],
)
add(
    "softmax_ce_soft",
    {"x": floats(4, 3), "y": CHANCES["x"]},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y, soft_label=True),
)
add(
    "softmax_ce_axis",
    {"x": floats(4, 3, 2), "y": ints(4, 1, 2, high=3)},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y, axis=1),
)
add("softmax_axis", CUBE, lambda f, x: f.layers.softmax(x, axis=1))
add(
    "sigmoid_ce",
    {"x": floats(4, 2) * 4, "y": floats(4, 2, low=0)},
    lambda f, x, y: f.layers.sigmoid_cross_entropy_with_logits(x, y),
)
add(
    "sigmoid_ce_norm",
    {"x": floats(4, 2) * 4, "y": np.array([[1, 0], [-1, 1], [0, -1], [1, 1]], "float32")},
    lambda f, x, y: f.layers.sigmoid_cross_entropy_with_logits(
        x, y, ignore_index=-1, normalize=True
    ),
)
add(
    "log_loss",
    {"x": floats(4, 1, low=0.1, high=0.9), "y": ints(4, 1, high=2).astype("float32")},
    lambda f, x, y: f.layers.log_loss(x, y),
)
add("square_error_cost", PAIR, lambda f, x, y: f.layers.square_error_cost(x, y))
add("mse_loss", PAIR, lambda f, x, y: f.layers.mse_loss(x, y))
add(
    "huber_loss",
    {"x": floats(4, 1) * 3, "y": floats(4, 1, seed=4)},
    lambda f, x, y: f.layers.huber_loss(x, y, 0.5),
)
add(
    "bpr_loss",
    {"x": floats(4, 3), "y": ints(4, 1, high=3)},
    lambda f, x, y: f.layers.bpr_loss(x, y),
)
add("label_smooth", PLAIN, lambda f, x: f.layers.label_smooth(x, epsilon=0.2))
add("rank_loss", RANKED, lambda f, label, x, y: f.layers.rank_loss(label, x, y))
add(
    "margin_rank_loss",
    {"label": np.array([[1], [-1], [1], [-1]], "float32"), "x": RANKED["x"], "y": RANKED["y"]},
    lambda f, label, x, y: f.layers.margin_rank_loss(label, x, y),
)
for r in ["mean", "sum", "batchmean", "none"]:
    add(
        "kldiv_loss_" + r,
        {"x": floats(4, 3, low=-2, high=-0.1), "t": floats(4, 3, low=0, high=1)},
        lambda f, x, t, r=r: f.layers.kldiv_loss(x, t, r),
    )
add(
    "smooth_l1",
    {"x": WIDE["x"], "y": floats(4, 3, seed=9)},
    lambda f, x, y: f.layers.smooth_l1(x, y),
)
add(
    "smooth_l1_sigma",
    {
        "x": WIDE["x"],
        "y": floats(4, 3, seed=9),
        "i": floats(4, 3, seed=5),
        "o": floats(4, 3, seed=6),
    },
    lambda f, x, y, i, o: f.layers.smooth_l1(x, y, i, o, 2.0),
)
add(
    "teacher_student",
    {
        "x": np.array([[-1.0], [0.5], [2], [-0.3], [20], [-18]], "float32"),
        "y": np.array([[-2], [-1], [0.3], [1.6], [0.2], [-1]], "float32"),
    },
    lambda f, x, label: f.layers.teacher_student_sigmoid_loss(x, label),
)
add(
    "sigmoid_focal",
    {"x": floats(4, 3), "y": np.array([[0], [1], [3], [-1]], "int32"), "n": np.array([2], "int32")},
    lambda f, x, label, n: f.layers.sigmoid_focal_loss(x, label, n),
    whole=True,
)
add(
    "center_loss",
    {"x": floats(4, 3), "y": ints(4, 1, high=3)},
    lambda f, x, label: f.layers.center_loss(x, label, 3, 0.1, None),
    forward_only=False,
)
add(
    "dice_loss",
    {"x": floats(4, 3, low=0, high=1), "y": ints(4, 1, high=3)},
    lambda f, x, label: f.layers.dice_loss(x, label),
)
add(
    "npair_loss",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4), "label": np.array([0, 1, 0, 2], "int64")},
    lambda f, x, y, label: f.layers.npair_loss(x, y, label),
    whole=True,
)
add(
    "hsigmoid",
    {"x": floats(4, 3), "y": ints(4, 1, high=6)},
    lambda f, x, label: f.layers.hsigmoid(x, label, 6),
)
add(
    "hsigmoid_8",
    {"x": floats(4, 3), "y": ints(4, 1, high=8)},
    lambda f, x, label: f.layers.hsigmoid(x, label, 8),
)
add(
    "hsigmoid_custom",
    {
        "x": floats(4, 3),
        "y": ints(4, 1, high=5),
        "t": np.array([[0, 2, -1], [0, 1, 3], [0, 1, 4], [0, 2, -1]]),
        "c": np.array([[0, 0, -1], [1, 1, 0], [1, 0, 1], [0, 1, -1]]),
    },
    lambda f, x, label, t, c: f.layers.hsigmoid(
        x, label, 5, path_table=t, path_code=c, is_custom=True
    ),
)
add(
    "sampled_softmax",
    {
        "x": floats(3, 6),
        "y": np.array([[1], [0], [5]]),
        "s": np.array([[1, 0, 2, 1], [0, 3, 4, 5], [5, 2, 1, 0]]),
        "p": floats(3, 4, low=0.1, high=0.9),
    },
    lambda f, x, label, s, p: f.layers.sampled_softmax_with_cross_entropy(
        x, label, 3, use_customized_samples=True, customized_samples=s, customized_probabilities=p
    ),
)
