"""Layers for click-through-rate models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sequences import Lods, Made, offsets_of

__all__ = ["continuous_value_model", "filter_by_instag"]

Tensor = torch.Tensor


class _ValueModel(torch.autograd.Function):
    """In the backward pass, returns shows and clicks as gradients, so that the table can count
    them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, use_cvm: bool) -> Tensor:
        ctx.save_for_backward(counts)
        ctx.use_cvm, ctx.rows = use_cvm, len(x)
        if not use_cvm:
            return x[:, 2:].clone()
        shows = torch.log(x[:, :1] + 1)
        return torch.cat([shows, torch.log(x[:, 1:2] + 1) - shows, x[:, 2:]], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (counts,) = ctx.saved_tensors
        rest = gradients[0][:, 2:] if ctx.use_cvm else gradients[0]
        return torch.cat([counts.to(rest.dtype).expand(ctx.rows, 2), rest], 1), None, None


def _value_shape(x: Shape, counts: Shape, *, use_cvm: bool = True) -> list[Shape]:
    del counts
    return [x if use_cvm else (x[0], x[1] - 2)]


@op("cvm", "X CVM", "Y", infer=_value_shape)
def cvm(x: Tensor, counts: Tensor, *, use_cvm: bool = True) -> Tensor:
    """Take the logarithm of shows and clicks, the first two columns, or remove these columns."""
    made: Tensor = _ValueModel.apply(x, counts, use_cvm)  # type: ignore[no-untyped-call]
    return made


def _tree_shapes(x: Shape, tree: Shape, **settings: Any) -> list[Shape]:
    del tree
    return [(*x, settings["child_nums"])] * 2


@op("tdm_child", "X TreeInfo", "Child LeafMask", infer=_tree_shapes)
def tdm_child(x: Tensor, tree: Tensor, *, child_nums: int, dtype: str = "int32") -> list[Tensor]:
    """Return the children of nodes, padded with 0, and whether each is a leaf.

    tree: each node's item, layer, parent and children; inner nodes have item 0.
    """
    nodes = x.reshape(-1).long()
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(tree):
        raise ValueError(f"nodes must be in 0..{len(tree) - 1}, got {nodes.min()}..{nodes.max()}")
    children = tree[nodes, 3 : 3 + child_nums]
    has_children = ((nodes != 0) & (tree[nodes, 3] != 0))[:, None]
    children = torch.where(has_children, children, 0)
    leaves = torch.where(has_children, (tree[children.long(), 0] != 0).to(tree.dtype), 0)
    shape = (*x.shape, child_nums)
    kind = getattr(torch, dtype)
    return [children.reshape(shape).to(kind), leaves.reshape(shape).to(kind)]


def _sampler_shapes(x: Shape, travel: Shape, layer: Shape, **settings: Any) -> list[Shape]:
    del travel, layer
    layers = settings["neg_samples_num_list"]
    width = sum(layers) + (len(layers) if settings.get("output_positive", True) else 0)
    return [(x[0], width)] * 3


@op("tdm_sampler", "X Travel Layer", "Out Labels Mask", infer=_sampler_shapes)
def tdm_sampler(
    x: Tensor,
    travel: Tensor,
    layer: Tensor,
    *,
    neg_samples_num_list: Sequence[int],
    layer_offset_lod: Sequence[int],
    output_positive: bool = True,
    dtype: str = "int32",
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Return, for each tree layer, the node on the path to a leaf, and sampled negatives of that
    layer.

    In layers below the end of a path, the node is 0 and the mask is 0.
    """
    ways = travel[x.reshape(-1).long()].long()
    nodes = layer.reshape(-1).long()
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for depth, count in enumerate(neg_samples_num_list):
        right = ways[:, depth : depth + 1]
        there = (right != 0).long()
        if output_positive:
            parts.append((right, there, there))
        members = nodes[layer_offset_lod[depth] : layer_offset_lod[depth + 1]]
        drawn = _others(members, right, count, generator) * there
        parts.append((drawn, torch.zeros_like(drawn), there.expand_as(drawn)))
    kind = getattr(torch, dtype)
    return [torch.cat(columns, 1).to(kind) for columns in zip(*parts, strict=True)]


def _others(
    members: Tensor, right: Tensor, count: int, generator: torch.Generator | None
) -> Tensor:
    """Sample `count` distinct members for each row, excluding the positive member: int64[N,
    count].
    """
    order = torch.rand(len(right), len(members), generator=generator)
    order = order.masked_fill(members == right, 2.0)
    return members[order.argsort(1)[:, :count]]


def _filter_shapes(rows: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [(-1, *rows[1:]), (-1, 1), (-1, 2)]


@op(
    "filter_by_instag",
    "Ins InsTag FilterTag",
    "Out LossWeight IndexMap",
    lod="function",
    infer=_filter_shapes,
)
def filter_by_instag_op(
    rows: Tensor,
    tags: Tensor,
    wanted: Tensor,
    *,
    lods: Lods,
    is_lod: bool,
    out_val_if_empty: float = 0,
) -> Made:
    """Keep the sequences or rows that have one of the wanted tags, each with weight 1."""
    begin = lods[1][-1]
    hits = torch.isin(tags.reshape(-1), wanted.reshape(-1)).long()
    counted = torch.cat([hits.new_zeros(1), hits.cumsum(0)])
    kept = (counted[begin[1:]] - counted[begin[:-1]] > 0).nonzero().reshape(-1)
    offsets = lods[0][-1] if is_lod and lods[0] else torch.arange(len(rows) + 1)
    starts, lengths = offsets[:-1][kept], offsets.diff()[kept]
    if not len(kept):
        empty = rows.new_full((1, *rows.shape[1:]), out_val_if_empty)
        lod = (torch.tensor([0, 1]),)
        return [empty, torch.zeros(1, 1), torch.tensor([[0, 1]])], lod
    made = offsets_of(lengths)
    places = torch.repeat_interleave(starts - made[:-1], lengths) + torch.arange(int(made[-1]))
    weights = torch.ones(len(kept), 1)
    return [rows[places], weights, torch.stack([made[:-1], starts], 1)], (made,)


@op("partial_concat", "X*", lod="none")
def partial_concat(tensors: list[Tensor], *, start_index: int = 0, length: int = -1) -> Tensor:
    return torch.cat([_part(tensor, start_index, length) for tensor in tensors], 1)


@op("partial_sum", "X*", lod="none")
def partial_sum(tensors: list[Tensor], *, start_index: int = 0, length: int = -1) -> Tensor:
    return torch.stack([_part(tensor, start_index, length) for tensor in tensors]).sum(0)


def _part(x: Tensor, start: int, length: int) -> Tensor:
    begin = start % x.shape[1] if start < 0 else start
    return x[:, begin : x.shape[1] if length < 0 else begin + length]


@op("l1_norm", "X", lod="none")
def l1_norm(x: Tensor) -> Tensor:
    return x.abs().sum().reshape(1)


@layer
def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Take the logarithm of shows and clicks, the first two of D columns, or remove both columns.

    cvm: shows and clicks [N, 2], used as the gradient of these columns.
    """
    helper = LayerHelper("cvm")
    inputs = {"X": helper.check_input(input), "CVM": helper.check_input(cvm, "cvm")}
    if len(input.shape) != 2 or 0 <= input.shape[1] < 2:
        raise helper.refuse(f"input must have rows of at least two columns, got {input}")
    out = helper.create_variable(dtype=input.dtype)
    return helper.add("cvm", inputs, {"use_cvm": use_cvm}, slot="Y", out=out)


@layer
def filter_by_instag(
    ins: Variable,
    ins_tag: Variable,
    filter_tag: Variable,
    is_lod: bool,
    out_val_if_empty: float = 0,
) -> tuple[Variable, Variable]:
    """Keep the sequences in ins that have one of the tags, each with weight 1.

    ins_tag: a sequence of tags for each sequence in ins. If no tag matches, returns one row of
    out_val_if_empty with weight 0.
    """
    helper = LayerHelper("filter_by_instag")
    inputs = {
        "Ins": helper.check_input(ins, "ins"),
        "InsTag": helper.check_input(ins_tag, "ins_tag"),
        "FilterTag": helper.check_input(filter_tag, "filter_tag"),
    }
    out = helper.new_variable(ins.dtype, lod_level=1)
    weight = helper.new_variable("float32", stop_gradient=True)
    index = helper.new_variable("int64", stop_gradient=True)
    outputs = {"Out": out, "LossWeight": weight, "IndexMap": index}
    attrs = {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty}
    helper.append_op("filter_by_instag", inputs, outputs, attrs)
    return out, weight
