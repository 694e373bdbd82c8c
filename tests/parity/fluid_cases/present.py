from __future__ import annotations
import numpy as np
from .case import add, floats, ints

X = {"x": floats(4, 3)}
POS = {"x": floats(4, 3, low=0.1, high=2.0)}
XY = {"x": floats(4, 3), "y": floats(4, 3, low=0.5, high=1.5, seed=3)}
X3 = {"x": floats(2, 3, 4)}

for n in "abs exp sigmoid tanh square cos sin ceil floor relu softplus softsign logsigmoid softmax elu gelu leaky_relu swish hard_sigmoid relu6 soft_relu mean round sign erf tanh_shrink brelu acos asin atan".split():
    add(
        n,
        {"x": floats(4, 3, low=-0.95, high=0.95) * (1 if n in ("acos", "asin") else 3)},
        lambda f, x, n=n: getattr(f.layers, n)(x),
    )
for n in "log sqrt rsqrt reciprocal".split():
    add(n, POS, lambda f, x, n=n: getattr(f.layers, n)(x))
for n in "add sub mul div max min".split():
    add(
        "elementwise_" + n,
        XY,
        lambda f, x, y, n=n: getattr(f.layers, "elementwise_" + n)(x, y, act="tanh"),
    )
add(
    "elementwise_pow", {"x": POS["x"], "y": XY["y"]}, lambda f, x, y: f.layers.elementwise_pow(x, y)
)
add(
    "elementwise_mod",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_mod(x, y),
    forward_only=True,
)
add(
    "elementwise_floordiv",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_floordiv(x, y),
    forward_only=True,
)
add(
    "elementwise_div_int",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_div(x, y),
    forward_only=True,
)
add(
    "elementwise_add_axis1",
    {"x": floats(2, 3, 4), "y": floats(3)},
    lambda f, x, y: f.layers.elementwise_add(x, y, axis=1),
    whole=True,
)
add(
    "elementwise_mul_axis0",
    {"x": floats(2, 3, 4), "y": floats(2, seed=5)},
    lambda f, x, y: f.layers.elementwise_mul(x, y, axis=0),
    whole=True,
)
add(
    "elementwise_mul_axis0_tail1",
    {"x": floats(2, 3, 4), "y": floats(2, 1, seed=5)},
    lambda f, x, y: f.layers.elementwise_mul(x, y, axis=0),
    whole=True,
)
add(
    "elementwise_add_tail",
    {"x": floats(2, 3, 4), "y": floats(3, 4)},
    lambda f, x, y: f.layers.elementwise_add(x, y),
    whole=True,
)
add(
    "elementwise_mul_col",
    {"x": floats(4, 3), "y": floats(4, 1)},
    lambda f, x, y: f.layers.elementwise_mul(x, y),
)
add(
    "elementwise_sub_small_x",
    {"x": floats(4, 1), "y": floats(4, 3)},
    lambda f, x, y: f.layers.elementwise_sub(x, y),
)
add(
    "elementwise_max_ties",
    {"x": np.ones((4, 3), "float32"), "y": np.ones((4, 3), "float32")},
    lambda f, x, y: f.layers.elementwise_max(x, y),
)
add(
    "elementwise_min_ties",
    {"x": np.ones((4, 3), "float32"), "y": np.ones((4, 3), "float32")},
    lambda f, x, y: f.layers.elementwise_min(x, y),
)
for n in "sum mean max min prod".split():
    g = getattr
    add("reduce_" + n, X3, lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=1))
    add("reduce_" + n + "_all", X3, lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x))
    add(
        "reduce_" + n + "_keep",
        X3,
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=[0, -1], keep_dim=True),
    )
    add(
        "reduce_" + n + "_allkeep",
        X3,
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, keep_dim=True),
        forward_only=True,
    )
for n in ("all", "any"):
    add(
        "reduce_" + n,
        {"x": ints(4, 3, high=2).astype(bool)},
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=1),
        forward_only=True,
    )
add(
    "reduce_max_ties", {"x": np.ones((4, 3), "float32")}, lambda f, x: f.layers.reduce_max(x, dim=1)
)
add("arith", XY, lambda f, x, y: (x + 1.0) * 2.0 - x / y)
add("arith_right", XY, lambda f, x, y: 1.0 - x * y)
add("arith_rdiv", XY, lambda f, x, y: 2.0 / y)
add("arith_neg", XY, lambda f, x, y: -x)
add("arith_pow", {"x": POS["x"], "y": XY["y"]}, lambda f, x, y: x**2)
add(
    "arith_int",
    {"x": ints(4, 3, high=9)},
    lambda f, x: [x * 2, x + 3, x - 1, x / 2],
    forward_only=True,
)
add("scale", X, lambda f, x: f.layers.scale(x, 2.0, 1.0))
add("scale_before", X, lambda f, x: f.layers.scale(x, 2.0, 1.0, bias_after_scale=False, act="relu"))
add(
    "scale_int",
    {"x": ints(4, 3, high=9)},
    lambda f, x: f.layers.scale(x, 0.5, 1.0),
    forward_only=True,
)
add("clip", X, lambda f, x: f.layers.clip(x, -0.5, 0.5))
add("pow", POS, lambda f, x: f.layers.pow(x, 1.5))
add("sums", XY, lambda f, x, y: f.layers.sums([x, y]))
add("sum", XY, lambda f, x, y: f.layers.sum([x, y]))
add(
    "mul",
    {"x": floats(2, 3, 4), "y": floats(12, 5)},
    lambda f, x, y: f.layers.mul(x, y),
    whole=True,
)
add(
    "mul_cols2",
    {"x": floats(2, 3, 4), "y": floats(4, 5)},
    lambda f, x, y: f.layers.mul(x, y, x_num_col_dims=2),
    whole=True,
)
add(
    "matmul",
    {"x": floats(2, 3, 4), "y": floats(2, 5, 4)},
    lambda f, x, y: f.layers.matmul(x, y, transpose_y=True, alpha=0.5),
)
add(
    "matmul_tx",
    {"x": floats(4, 3), "y": floats(4, 5)},
    lambda f, x, y: f.layers.matmul(x, y, transpose_x=True),
    whole=True,
)
add(
    "matmul_1d", {"x": floats(4), "y": floats(4)}, lambda f, x, y: f.layers.matmul(x, y), whole=True
)
add(
    "matmul_2d_1d",
    {"x": floats(3, 4), "y": floats(4)},
    lambda f, x, y: f.layers.matmul(x, y),
    whole=True,
)
add(
    "matmul_1dt",
    {"x": floats(4), "y": floats(3)},
    lambda f, x, y: f.layers.matmul(f.layers.reshape(x, [4, 1]), f.layers.reshape(y, [1, 3])),
    whole=True,
)
add("cos_sim", XY, lambda f, x, y: f.layers.cos_sim(x, y))
add(
    "cos_sim_row",
    {"x": floats(4, 3), "y": floats(1, 3)},
    lambda f, x, y: f.layers.cos_sim(x, y),
    whole=True,
)
add(
    "cos_sim_lod",
    {"x": floats(4, 3), "y": floats(4, 3, seed=8)},
    lambda f, x, y: f.layers.cos_sim(x, y),
    lod={"x": [[1, 3]]},
)
add("l2_normalize", X, lambda f, x: f.layers.l2_normalize(x, axis=1))
add("l2_normalize_1d", {"x": floats(4)}, lambda f, x: f.layers.l2_normalize(x, axis=0), whole=True)
add(
    "l2_normalize_eps",
    {"x": floats(4, 3) * 1e-3},
    lambda f, x: f.layers.l2_normalize(x, axis=-1, epsilon=1e-4),
)
add("fc", X, lambda f, x: f.layers.fc(x, 5, act="sigmoid"))
add("fc_two", XY, lambda f, x, y: f.layers.fc([x, y], 5))
add("fc_3d", X3, lambda f, x: f.layers.fc(x, 5, num_flatten_dims=2))
add("fc_3d_flat", X3, lambda f, x: f.layers.fc(x, 5, bias_attr=False))
add("fc_neg", X3, lambda f, x: f.layers.fc(x, 5, num_flatten_dims=-1))
add("cast", X, lambda f, x: f.layers.cast(x, "float64"), forward_only=True)
add("cast_int", {"x": floats(4, 3) * 5}, lambda f, x: f.layers.cast(x, "int32"), forward_only=True)
add("reshape", X3, lambda f, x: f.layers.reshape(x, [0, -1], act="tanh"))
add("reshape_batch", X3, lambda f, x: f.layers.reshape(x, [-1, 2]))
add("transpose", X3, lambda f, x: f.layers.transpose(x, [2, 0, 1]))
add("squeeze", {"x": floats(4, 1, 3)}, lambda f, x: f.layers.squeeze(x, [1]))
add("squeeze_neg", {"x": floats(4, 3, 1)}, lambda f, x: f.layers.squeeze(x, [-1]))
add("squeeze_all", {"x": floats(4, 1, 3, 1)}, lambda f, x: f.layers.squeeze(x, []), whole=True)
add("unsqueeze", X, lambda f, x: f.layers.unsqueeze(x, [1]))
add("unsqueeze2", X, lambda f, x: f.layers.unsqueeze(x, [0, 2]))
add("unsqueeze_neg", X, lambda f, x: f.layers.unsqueeze(x, -1))
add("flatten", X3, lambda f, x: f.layers.flatten(x, 2))
add("flatten0", X3, lambda f, x: f.layers.flatten(x, 0), whole=True)
add("concat", XY, lambda f, x, y: f.layers.concat([x, y], axis=1))
add("concat_neg", XY, lambda f, x, y: f.layers.concat([x, y], axis=-1))
add("concat_0", XY, lambda f, x, y: f.layers.concat([x, y]))
add(
    "concat_lod",
    XY,
    lambda f, x, y: f.layers.concat([x, y], axis=1),
    lod={"x": [[1, 3]], "y": [[1, 3]]},
)
add("stack", XY, lambda f, x, y: f.layers.stack([x, y], axis=1))
add("stack_neg", XY, lambda f, x, y: f.layers.stack([x, y], axis=-1))
add("split", X3, lambda f, x: f.layers.split(x, [1, -1], dim=1))
add("split_num", X3, lambda f, x: f.layers.split(x, 2, dim=-1))
add("unstack", X3, lambda f, x: f.layers.unstack(x, axis=1))
add("expand", X, lambda f, x: f.layers.expand(x, [2, 3]))
add("slice", X, lambda f, x: f.layers.slice(x, [0, 1], [1, 0], [3, -1]))
add("slice_big", X, lambda f, x: f.layers.slice(x, [0, 1], [-3, 1], [1000, 1000]))
add("slice_drop", X3, lambda f, x: x[:, 1])
add("slice_range", X3, lambda f, x: x[:, 1:, 0:2])
add("slice_neg", X3, lambda f, x: x[:, -1])
add("slice_step", X3, lambda f, x: x[:, :, 0:4:2])
add("slice_first", X3, lambda f, x: x[0])
add("shape", X3, lambda f, x: f.layers.shape(x), forward_only=True)
add("pad", X, lambda f, x: f.layers.pad(x, [0, 1, 2, 0], 3.0))
add("reverse", X, lambda f, x: f.layers.reverse(x, 0))
add("reverse2", X, lambda f, x: f.layers.reverse(x, [0, 1]))
add("assign", X, lambda f, x: f.layers.assign(x))
add(
    "assign_np",
    X,
    lambda f, x: f.layers.assign(np.array([[1.5, 2], [3, 4]], "float32")),
    forward_only=True,
)
add("topk", X, lambda f, x: f.layers.topk(x, 2))
add("argsort", X, lambda f, x: f.layers.argsort(x, axis=1))
add("argsort_desc", X, lambda f, x: f.layers.argsort(x, axis=0, descending=True))
add("argmax", X3, lambda f, x: f.layers.argmax(x, axis=-1), forward_only=True)
add("argmin", X3, lambda f, x: f.layers.argmin(x, axis=1), forward_only=True)
add("argmax_1d", {"x": floats(4)}, lambda f, x: f.layers.argmax(x), whole=True, forward_only=True)
add("gather", {"x": floats(4, 3), "y": np.array([2, 0, 1])}, lambda f, x, y: f.layers.gather(x, y))
add(
    "gather_col",
    {"x": floats(4, 3), "y": np.array([[2], [0]])},
    lambda f, x, y: f.layers.gather(x, y),
)
add(
    "gather_nd",
    {"x": floats(4, 3), "y": np.array([[2, 0], [1, 1]])},
    lambda f, x, y: f.layers.gather_nd(x, y),
)
add(
    "gather_nd_rows",
    {"x": floats(4, 3), "y": np.array([[[2], [0]], [[1], [1]]])},
    lambda f, x, y: f.layers.gather_nd(x, y),
)
add(
    "scatter",
    {"x": floats(4, 3), "y": np.array([2, 0]), "z": floats(2, 3, seed=9)},
    lambda f, x, y, z: f.layers.scatter(x, y, z),
)
add(
    "scatter_add",
    {"x": floats(4, 3), "y": np.array([2, 0, 2]), "z": floats(3, 3, seed=9)},
    lambda f, x, y, z: f.layers.scatter(x, y, z, overwrite=False),
)
add("cumsum", X, lambda f, x: f.layers.cumsum(x, axis=0))
add("cumsum_default", X, lambda f, x: f.layers.cumsum(x))
add("cumsum_ex", X, lambda f, x: f.layers.cumsum(x, axis=0, exclusive=True, reverse=True))
P = {
    "x": np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]], "float32"),
    "y": ints(4, 1, high=3),
}
add("cross_entropy", P, lambda f, x, y: f.layers.cross_entropy(x, y))
add(
    "cross_entropy_ignore",
    {"x": P["x"], "y": np.array([[0], [1], [-100], [2]])},
    lambda f, x, y: f.layers.cross_entropy(x, y),
)
add("cross_entropy_ignore1", P, lambda f, x, y: f.layers.cross_entropy(x, y, ignore_index=1))
add(
    "cross_entropy_soft",
    {"x": P["x"], "y": P["x"][::-1].copy()},
    lambda f, x, y: f.layers.cross_entropy(x, y, soft_label=True),
)
add(
    "cross_entropy_3d",
    {"x": np.stack([P["x"], P["x"]]), "y": ints(2, 4, 1, high=3)},
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
    {"x": floats(4, 3), "y": P["x"]},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y, soft_label=True),
)
add(
    "softmax_ce_axis",
    {"x": floats(4, 3, 2), "y": ints(4, 1, 2, high=3)},
    lambda f, x, y: f.layers.softmax_with_cross_entropy(x, y, axis=1),
)
add("softmax_axis", X3, lambda f, x: f.layers.softmax(x, axis=1))
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
add("square_error_cost", XY, lambda f, x, y: f.layers.square_error_cost(x, y))
add("mse_loss", XY, lambda f, x, y: f.layers.mse_loss(x, y))
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
add("label_smooth", X, lambda f, x: f.layers.label_smooth(x, epsilon=0.2))
add("layer_norm", X, lambda f, x: f.layers.layer_norm(x))
add("layer_norm_axis2", X3, lambda f, x: f.layers.layer_norm(x, begin_norm_axis=2, act="relu"))
add("layer_norm_plain", X3, lambda f, x: f.layers.layer_norm(x, scale=False, shift=False))
add("batch_norm", X, lambda f, x: f.layers.batch_norm(x, act="tanh"))
add("batch_norm_4d", {"x": floats(2, 3, 4, 4)}, lambda f, x: f.layers.batch_norm(x))
add(
    "batch_norm_nhwc",
    {"x": floats(2, 4, 4, 3)},
    lambda f, x: f.layers.batch_norm(x, data_layout="NHWC"),
)
add(
    "batch_norm_test",
    {"x": floats(2, 3, 4, 4)},
    lambda f, x: f.layers.batch_norm(x, is_test=True),
    forward_only=True,
)
add("dropout_test", X, lambda f, x: f.layers.dropout(x, 0.25, is_test=True), forward_only=True)
add(
    "dropout_up_test",
    X,
    lambda f, x: f.layers.dropout(x, 0.25, is_test=True, dropout_implementation="upscale_in_train"),
    forward_only=True,
)
for n in "equal not_equal less_than less_equal greater_than greater_equal".split():
    add(
        n,
        {"x": ints(4, 3, high=3), "y": ints(4, 3, high=3, seed=7)},
        lambda f, x, y, n=n: getattr(f.layers, n)(x, y),
        forward_only=True,
    )
for n in "logical_and logical_or logical_xor".split():
    add(
        n,
        {"x": ints(4, 3, high=2).astype(bool), "y": ints(4, 3, high=2, seed=7).astype(bool)},
        lambda f, x, y, n=n: getattr(f.layers, n)(x, y),
        forward_only=True,
    )
add(
    "logical_not",
    {"x": ints(4, 3, high=2).astype(bool)},
    lambda f, x: f.layers.logical_not(x),
    forward_only=True,
)
add(
    "compare_op",
    {"x": floats(4, 3), "y": floats(4, 3, seed=8)},
    lambda f, x, y: [x < y, x >= 0.5, x == y],
    forward_only=True,
)
add("one_hot", {"x": ints(4, 1, high=3)}, lambda f, x: f.layers.one_hot(x, 3), forward_only=True)
add("one_hot_v2", {"x": ints(4, high=3)}, lambda f, x: f.one_hot(x, 3), forward_only=True)
add(
    "one_hot_range",
    {"x": ints(4, 1, high=5)},
    lambda f, x: f.layers.one_hot(x, 3, allow_out_of_range=True),
    forward_only=True,
)
add("fill_constant", X, lambda f, x: f.layers.fill_constant([2, 3], "int64", 5), forward_only=True)
add(
    "fill_constant_bsl",
    X,
    lambda f, x: f.layers.fill_constant_batch_size_like(x, [1, 5], "float32", 5),
    forward_only=True,
)
add(
    "fill_constant_bsl2",
    X,
    lambda f, x: f.layers.fill_constant_batch_size_like(x, [2, -1], "int64", 5, output_dim_idx=1),
    forward_only=True,
)
add(
    "zeros_ones",
    X,
    lambda f, x: [
        f.layers.zeros([2], "int32"),
        f.layers.ones([2], "float32"),
        f.layers.zeros_like(x),
        f.layers.ones_like(x),
    ],
    forward_only=True,
)
add(
    "increment",
    {"x": floats(1)},
    lambda f, x: f.layers.increment(x, 2.0, in_place=False),
    whole=True,
    forward_only=True,
)
add("embedding", {"x": ints(4, 1, high=5)}, lambda f, x: f.layers.embedding(x, [5, 3]))
add(
    "embedding_pad",
    {"x": ints(4, 1, high=5)},
    lambda f, x: f.layers.embedding(x, [5, 3], padding_idx=-1),
)
add("embedding_3d", {"x": ints(4, 2, 1, high=5)}, lambda f, x: f.layers.embedding(x, [5, 3]))
add("embedding_v2", {"x": ints(4, 2, high=5)}, lambda f, x: f.embedding(x, [5, 3]))
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
add("accuracy", P, lambda f, x, y: f.layers.accuracy(x, y, k=2), forward_only=True)
S = {"x": floats(6, 3)}
L = {"x": [[2, 1, 3]]}
for n in "sum average sqrt max first last".split():
    add("sequence_pool_" + n, S, lambda f, x, n=n: f.layers.sequence_pool(x, n), lod=L)
    add(
        "sequence_pool_empty_" + n,
        S,
        lambda f, x, n=n: f.layers.sequence_pool(x, n, pad_value=0.5),
        lod={"x": [[2, 0, 4]]},
    )
    add(
        "sequence_pool_2_" + n,
        S,
        lambda f, x, n=n: f.layers.sequence_pool(x, n),
        lod={"x": [[2, 1], [2, 1, 3]]},
    )
add("sequence_first_step", S, lambda f, x: f.layers.sequence_first_step(x), lod=L)
add("sequence_last_step", S, lambda f, x: f.layers.sequence_last_step(x), lod=L)
add("sequence_softmax", {"x": floats(6, 1)}, lambda f, x: f.layers.sequence_softmax(x), lod=L)
add(
    "sequence_expand",
    {"x": floats(3, 2), "y": floats(6, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y),
    lod={"y": [[2, 1, 3]]},
)
add(
    "sequence_expand_seq",
    {"x": floats(4, 1), "y": floats(8, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y, ref_level=0),
    lod={"x": [[2, 2]], "y": [[2, 2], [3, 3, 1, 1]]},
)
add(
    "sequence_expand_zero",
    {"x": floats(3, 1), "y": floats(5, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y),
    lod={"y": [[2, 0, 3]]},
)
add(
    "sequence_expand_as",
    {"x": floats(3, 2), "y": floats(6, 1)},
    lambda f, x, y: f.layers.sequence_expand_as(x, y),
    lod={"y": [[2, 1, 3]]},
)
add("sequence_reshape", {"x": floats(6, 4)}, lambda f, x: f.layers.sequence_reshape(x, 2), lod=L)
add(
    "sequence_concat",
    {"x": floats(6, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.layers.sequence_concat([x, y]),
    lod={"x": [[2, 1, 3]], "y": [[1, 2, 1]]},
)
add(
    "sequence_pad",
    {"x": floats(6, 3), "y": floats(1)},
    lambda f, x, y: f.layers.sequence_pad(x, y, maxlen=4),
    lod=L,
    whole=True,
)
add(
    "sequence_pad_long",
    {"x": floats(6, 3), "y": floats(1)},
    lambda f, x, y: f.layers.sequence_pad(x, y)[0],
    lod=L,
    whole=True,
)
add(
    "sequence_unpad",
    {"x": floats(3, 4, 2), "y": np.array([2, 1, 3])},
    lambda f, x, y: f.layers.sequence_unpad(x, y),
)
add("lod_reset", {"x": floats(6, 3)}, lambda f, x: f.layers.lod_reset(x, target_lod=[0, 4, 6]))
add(
    "lod_reset_y",
    {"x": floats(6, 3), "y": np.array([0, 2, 6], "int32")},
    lambda f, x, y: f.layers.lod_reset(x, y),
)
add(
    "lod_reset_ylod",
    {"x": floats(6, 3), "y": floats(6, 1)},
    lambda f, x, y: f.layers.lod_reset(x, y),
    lod={"y": [[1, 2], [2, 2, 2]]},
)
add("sequence_conv", S, lambda f, x: f.layers.sequence_conv(x, 4, 3, act="tanh"), lod=L)
add("sequence_conv_even", S, lambda f, x: f.layers.sequence_conv(x, 4, 4, padding_start=-1), lod=L)
add("sequence_conv_pool", S, lambda f, x: f.nets.sequence_conv_pool(x, 4, 3), lod=L)
add(
    "simple_img_conv_pool",
    {"x": floats(2, 3, 6, 6)},
    lambda f, x: f.nets.simple_img_conv_pool(x, 4, 3, 2, 2, act="relu"),
)
add("dynamic_gru", {"x": floats(6, 9)}, lambda f, x: f.layers.dynamic_gru(x, 3), lod=L)
add(
    "dynamic_gru_rev",
    {"x": floats(6, 9)},
    lambda f, x: f.layers.dynamic_gru(x, 3, is_reverse=True, origin_mode=True),
    lod=L,
)
add("row_lod_fc", S, lambda f, x: f.layers.fc(x, 2), lod=L)
add("reduce_sum_lod", S, lambda f, x: f.layers.reduce_sum(x, dim=1, keep_dim=True), lod=L)
add("where_xy", {"x": floats(4, 3)}, lambda f, x: f.layers.where(x > 0.0), forward_only=True)
