"""Layers over a tree of items (Zhu et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Constant
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.shaping import reshape
from sparsefleet.fluid.layers.slicing import slice
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["tdm_child", "tdm_sampler"]


def _tree(helper: LayerHelper, attr: Any, shape: Sequence[int], dtype: str) -> Variable:
    known = to_param_attr(attr)
    if known is None:
        raise helper.refuse("the attr of a tree cannot be False")
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
    """The children of nodes, and whether each is a leaf: [..., child_nums], 0 where there is none.

    param_attr: of the tree [node_nums, 3 + child_nums]: item, layer, parent and children of each
        node; item and missing children 0.
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
    """Samples, labels and masks: on each layer the node above a leaf, and some that are not.

    x: leaves [N, 1]. tree_travel_attr: of the way to each leaf [leaves, layers]; tree_layer_attr:
        of the nodes layer by layer [nodes, 1].
    output_list: a list with [N, samples, 1] for each layer, else [N, all samples].
    """
    helper = LayerHelper("tdm_sampler")
    kind, tree_kind = _whole(helper, dtype), _whole(helper, tree_dtype)
    counts, nodes = list(neg_samples_num_list), list(layer_node_num_list)
    if len(counts) != len(nodes) or any(a >= b for a, b in zip(counts, nodes, strict=True)):
        raise helper.refuse(
            f"of each layer fewer nodes than it has can be drawn: {counts} of {nodes}"
        )
    if leaf_node_num >= sum(nodes):
        raise helper.refuse(f"{leaf_node_num} leaves, but {sum(nodes)} nodes in all")
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
