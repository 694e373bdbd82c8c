"""Layers from `fluid.contrib`: fused operators, metric sums, tree sampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import Variable, unique_name
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.initializer import Constant
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.operators.embedding import add_lookup, embedding_of_ids
from sparsefleet.fluid.operators.indexing import slice
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.shaping import reshape

__all__ = [
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
    "sparse_embedding",
    "tdm_child",
    "tdm_sampler",
]


_BINARY = ("elementwise_add", "elementwise_mul")

_UNARY = ("relu", "scale", "tanh", "sigmoid", "gelu")


@layer
def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: str | Sequence[str],
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """Fuse two operators: ["elementwise_add", "relu"] for x + relu(y); reversed for relu(x + y)."""
    del save_intermediate_out
    helper = LayerHelper("fused_elemwise_activation")
    names = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    if len(names) != 2 or not (
        (names[0] in _BINARY and names[1] in _UNARY) or (names[1] in _BINARY and names[0] in _UNARY)
    ):
        raise helper.refuse(
            f"functor_list must name one of {_BINARY} and one of {_UNARY}, got {names!r}"
        )
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    outer, inner = names
    settings = {"scale": scale} if "scale" in names else {}
    middle = helper.new_variable(x.dtype)
    if inner in _UNARY:
        helper.append_op(inner, {"X": helper.check_input(y, "y")}, {"Out": middle}, settings)
        helper.append_op(outer, {"X": x, "Y": middle}, {"Out": out}, {"axis": axis})
    else:
        helper.append_op(inner, {"X": x, "Y": y}, {"Out": middle}, {"axis": axis})
        helper.append_op(outer, {"X": middle}, {"Out": out}, settings)
    return out


@layer
def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Sum the rows for each sequence of ids, like `embedding` followed by `sequence_pool`."""
    helper = LayerHelper("fused_embedding_seq_pool")
    if combiner != "sum":
        raise helper.refuse(f"combiner must be 'sum', got {combiner!r}")
    out = helper.new_variable(dtype)
    rows = add_lookup(
        helper, "lookup_table", input, size, is_sparse, padding_idx, param_attr, dtype
    )
    attrs = {"pooltype": "SUM", "pad_value": 0.0}
    helper.append_op("sequence_pool", {"X": rows}, {"Out": out}, attrs)
    return out


def _parts(
    type: str, input: Variable | Sequence[Variable], start_index: int, length: int
) -> Variable:
    helper = LayerHelper(type)
    inputs = [input] if isinstance(input, Variable) else list(input)
    attrs = {"start_index": start_index, "length": length}
    return helper.add(type, {"X": [helper.check_input(x) for x in inputs]}, attrs)


@layer
def partial_concat(
    input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1
) -> Variable:
    """Concatenate `length` columns of each input, starting at start_index."""
    return _parts("partial_concat", input, start_index, length)


@layer
def partial_sum(
    input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1
) -> Variable:
    """Sum `length` columns of each input, starting at start_index."""
    return _parts("partial_sum", input, start_index, length)


@layer
def shuffle_batch(x: Variable, seed: int | Variable | None = None) -> Variable:
    """Shuffle the rows, differently in each run, as a cheap way to get negative examples."""
    helper = LayerHelper("shuffle_batch")
    if isinstance(seed, Variable):
        raise helper.refuse(f"seed must be a number, got {seed}")
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    order = helper.new_variable("int64", stop_gradient=True)
    outputs = {"Out": out, "ShuffleIdx": order}
    helper.append_op("shuffle_batch", {"X": x}, outputs, {"seed": seed or 0})
    return out


@layer
def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Return running sums: squared error, absolute error, predictions, sigmoids, clicks, examples.

    input, label: float32[N, 1]. The six sums, float32[1] each, are kept in the scope.
    """
    helper = LayerHelper("ctr_metric_bundle")
    if helper.check_input(input).shape != helper.check_input(label, "label").shape:
        raise helper.refuse(f"input and label must have the same shape, got {input} and {label}")
    gap = helper.add("elementwise_sub", {"X": input, "Y": label})
    ones = {"shape": [-1, 1], "dtype": "float32", "value": 1.0}
    batch = (
        helper.add("squared_l2_norm", {"X": gap}),
        helper.add("l1_norm", {"X": gap}),
        helper.add("reduce_sum", {"X": input}),
        helper.add("reduce_sum", {"X": helper.add("sigmoid", {"X": input})}),
        helper.add("reduce_sum", {"X": label}),
        helper.add(
            "reduce_sum",
            {"X": helper.add("fill_constant_batch_size_like", {"Input": label}, ones)},
        ),
    )
    names = [unique_name.generate("_generated_var") for _ in batch]
    names[:2] = names[1::-1]  # in Fluid, the absolute error comes first
    sums = [helper.create_state(name, [1], "float32") for name in names]
    for value, total in zip(batch, sums, strict=True):
        helper.append_op("elementwise_add", {"X": value, "Y": total}, {"Out": total})
    return tuple(sums)


@layer
def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Call `fluid.embedding` with is_sparse=True.

    is_test: has no effect, since a program that does not train never creates rows.
    """
    del is_test
    if entry is not None:
        raise ConfigError(
            f"sparse_embedding: entry rules are not supported, got {entry!r}; use entry=None"
        )
    return embedding_of_ids(
        input,
        size,
        is_sparse=True,
        is_distributed=True,
        padding_idx=padding_idx,
        param_attr=param_attr,
        dtype=dtype,
    )


def _tree(helper: LayerHelper, attr: Any, shape: Sequence[int], dtype: str) -> Variable:
    known = to_param_attr(attr)
    if known is None:
        raise helper.refuse("the tree's param_attr cannot be False")
    made = helper.create_parameter(known, shape, dtype, default_initializer=Constant(0))
    made.stop_gradient = True
    return made


def _whole(helper: LayerHelper, dtype: Any) -> str:
    name = dtype_name(dtype)
    if name not in ("int32", "int64"):
        raise helper.refuse(f"dtype must be int32 or int64, got {dtype!r}")
    return name


@layer
def tdm_child(
    x: Variable, node_nums: int, child_nums: int, param_attr: Any = None, dtype: Any = "int32"
) -> tuple[Variable, Variable]:
    """Return the children of nodes, and whether each is a leaf: [..., child_nums], padded with 0.

    param_attr: attr of the tree [node_nums, 3 + child_nums], which holds each node's item, layer,
        parent and children. Items of inner nodes and missing children are 0.
    """
    helper = LayerHelper("tdm_child")
    kind = _whole(helper, dtype)
    tree = _tree(helper, param_attr, [node_nums, 3 + child_nums], kind)
    child = helper.new_variable(kind, stop_gradient=True)
    leaf = helper.new_variable(kind, stop_gradient=True)
    inputs = {"X": helper.check_input(x, "x"), "TreeInfo": tree}
    attrs = {"child_nums": child_nums, "dtype": kind}
    helper.append_op("tdm_child", inputs, {"Child": child, "LeafMask": leaf}, attrs)
    return child, leaf


@layer
def tdm_sampler(
    x: Variable,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: Any = None,
    tree_layer_attr: Any = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: Any = "int32",
    dtype: Any = "int32",
) -> tuple[Any, Any, Any]:
    """Return samples (each leaf's ancestor and some negatives per tree layer), labels and masks.

    x: leaves [N, 1]. tree_travel_attr: attr of the paths to the leaves [leaves, layers];
        tree_layer_attr: attr of the nodes, layer by layer [nodes, 1].
    output_list: return a list with [N, samples, 1] for each layer instead of [N, all samples].
    """
    helper = LayerHelper("tdm_sampler")
    kind, tree_kind = _whole(helper, dtype), _whole(helper, tree_dtype)
    counts, nodes = list(neg_samples_num_list), list(layer_node_num_list)
    if len(counts) != len(nodes) or any(a >= b for a, b in zip(counts, nodes, strict=True)):
        raise helper.refuse(
            f"each layer must have more nodes than samples, got {counts} samples for {nodes} nodes"
        )
    if leaf_node_num >= sum(nodes):
        raise helper.refuse(
            f"leaf_node_num is {leaf_node_num}, but there are {sum(nodes)} nodes in total"
        )
    travel = _tree(helper, tree_travel_attr, [leaf_node_num, len(nodes)], tree_kind)
    members = _tree(helper, tree_layer_attr, [sum(nodes), 1], tree_kind)
    outs = [helper.new_variable(kind, stop_gradient=True) for _ in range(3)]
    attrs = {
        "neg_samples_num_list": counts,
        "layer_offset_lod": [0, *accumulate(nodes)],
        "output_positive": output_positive,
        "seed": seed,
        "dtype": kind,
    }
    inputs = {"X": helper.check_input(x, "x"), "Travel": travel, "Layer": members}
    outputs = dict(zip(("Out", "Labels", "Mask"), outs, strict=True))
    helper.append_op("tdm_sampler", inputs, outputs, attrs)
    if not output_list:
        return outs[0], outs[1], outs[2]
    lists: tuple[list[Variable], ...] = ([], [], [])
    begin = 0
    for count in counts:
        width = count + int(output_positive)
        for out, found in zip(outs, lists, strict=True):
            found.append(_of_layer(out, begin, width))
        begin += width
    return lists[0], lists[1], lists[2]


def _of_layer(out: Variable, begin: int, width: int) -> Variable:
    part = reshape(slice(out, axes=[1], starts=[begin], ends=[begin + width]), [-1, width, 1])
    part.stop_gradient = True
    return part
