"""Layers from `fluid.contrib` for matching texts: products of all word pairs, and their pooling.

In shapes, D is the width of a row, T the number of channels, and L and R the numbers of rows in a
pair of sequences. Each pair's matrix is stored as L * R rows of width 1 per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sequences import Lods, Made, level_of, offsets_of
from sparsefleet.fluid.operators.xxhash import xxhash32

__all__ = [
    "match_matrix_tensor",
    "rank_attention",
    "search_pyramid_hash",
    "sequence_topk_avg_pooling",
    "tree_conv",
    "var_conv_2d",
]

Tensor = torch.Tensor


def _sizes(lod: Any, what: str) -> list[tuple[int, int]]:
    return list(pairwise(level_of(lod, what, 0).tolist()))


def _matrices(lods: Lods) -> list[tuple[int, int, int]]:
    """Return each matrix's first row, number of rows and number of columns, from the LoDs of X,
    ROW and COLUMN.
    """
    parts = (_sizes(lod, what) for lod, what in zip(lods, ("X", "ROW", "COLUMN"), strict=False))
    return [(x[0], row[1] - row[0], col[1] - col[0]) for x, row, col in zip(*parts, strict=True)]


def _joined(parts: list[Tensor]) -> Made:
    """Return matrices as rows of width 1, with their LoD."""
    lengths = torch.tensor([part.numel() for part in parts])
    return torch.cat([part.reshape(-1, 1) for part in parts]), (offsets_of(lengths),)


def _match_shapes(x: Shape, y: Shape, w: Shape, **_: Any) -> list[Shape]:
    del y
    return [(-1, 1), (x[0], w[1] * w[2])]


@op("match_matrix_tensor", "X Y W", "Out Tmp", lod="function", infer=_match_shapes)
def match_matrix_tensor_op(x: Tensor, y: Tensor, w: Tensor, *, lods: Lods) -> tuple[Any, Any]:
    """Return x W_t y for all pairs of rows in a pair of sequences, channel by channel."""
    middle = (x @ w.reshape(len(w), -1)).reshape(len(x), w.shape[1], w.shape[2])
    pairs = zip(_sizes(lods[0], "X"), _sizes(lods[1], "Y"), strict=True)
    made = [
        torch.einsum("ltd,rd->tlr", middle[slice(*own)], y[slice(*other)]) for own, other in pairs
    ]
    out, lod = _joined(made)
    return [out, middle.detach().reshape(len(x), -1)], lod


@op(
    "var_conv_2d",
    "X ROW COLUMN W",
    "Out",
    lod="function",
    infer=lambda *_, **__: [(-1, 1)],
)
def var_conv_2d_op(
    x: Tensor,
    row: Tensor,
    column: Tensor,
    w: Tensor,
    *,
    lods: Lods,
    InputChannel: int,  # noqa: N803  (Fluid's names)
    OutputChannel: int,  # noqa: N803
    StrideH: int = 1,  # noqa: N803
    StrideW: int = 1,  # noqa: N803
    KernelH: int = 1,  # noqa: N803
    KernelW: int = 1,  # noqa: N803
) -> Made:
    """Convolve matrices of different sizes, padded so that stride 1 keeps their size."""
    del row, column
    kernel = w.reshape(OutputChannel, InputChannel, KernelH, KernelW)
    before, after = (KernelH // 2, KernelW // 2), ((KernelH - 1) // 2, (KernelW - 1) // 2)
    made = []
    for begin, rows, columns in _matrices(lods):
        count = InputChannel * rows * columns
        if not count:
            made.append(x.new_zeros(0))
            continue
        picture = x[begin : begin + count].reshape(1, InputChannel, rows, columns)
        padded = functional.pad(picture, (before[1], after[1], before[0], after[0]))
        made.append(functional.conv2d(padded, kernel, stride=(StrideH, StrideW)))
    return _joined(made)


def _pooled_shape(x: Shape, row: Shape, *_: Any, **settings: Any) -> list[Shape]:
    del x
    return [(row[0], len(settings["topks"]) * settings["channel_num"])]


@op("sequence_topk_avg_pooling", "X ROW COLUMN", lod="function", infer=_pooled_shape)
def sequence_topk_avg_pooling_op(
    x: Tensor, row: Tensor, column: Tensor, *, lods: Lods, topks: Sequence[int], channel_num: int
) -> Made:
    """Return, for each row of a matrix and each k, the sum of its k largest values divided by k.

    In a row with fewer than k values, missing values are treated as 0.
    """
    del column
    made = []
    for begin, rows, columns in _matrices(lods):
        count = channel_num * rows * columns
        matrix = x[begin : begin + count].reshape(channel_num, rows, columns)
        top = matrix.sort(-1, descending=True).values[..., : max(topks)]
        missing = max(topks) - top.shape[-1]
        sums = functional.pad(top, (0, missing)).cumsum(-1)
        means = torch.stack([sums[..., k - 1] / k for k in topks], -1)  # [channels, rows, k]
        made.append(means.permute(1, 0, 2).reshape(rows, -1))
    del row
    return torch.cat(made), lods[1]


def _tree_shape(nodes: Shape, edges: Any, w: Shape, **_: Any) -> list[Shape]:
    del edges
    return [(nodes[0], nodes[1], w[2], w[3])]


@op("tree_conv", "NodesVector EdgeSet Filter", lod="none", infer=_tree_shape)
def tree_conv_op(nodes: Tensor, edges: Tensor, w: Tensor, *, max_depth: int = 2) -> Tensor:
    """Convolve each node with its descendants by position: nodes [N, n, D], edges [N, e, 2].

    Nodes are numbered from 1; an edge that contains a 0 ends the list.
    """
    size = nodes.shape[1]
    weights = nodes.new_zeros((len(nodes), 3, size, size))
    for number, tree in enumerate(edges.tolist()):
        weights[number] = _tree_weights(tree, size, max_depth)
    # Sum each feature over the tree three times (left, right, top), then multiply once.
    sums = torch.einsum("bkij,bjd->bidk", weights, nodes)
    flat = w.reshape(w.shape[0] * w.shape[1], -1)
    return (sums.reshape(len(nodes), size, -1) @ flat).reshape(-1, size, *w.shape[2:])


def _tree_weights(edges: list[list[int]], size: int, max_depth: int) -> Tensor:
    """Return the weight of each node in the patch of each root: [3, root, node]."""
    children: dict[int, list[int]] = {}
    count = 1
    for parent, child in edges:
        if not (parent and child):
            break
        children.setdefault(parent, []).append(child)
        count += 1
    found = torch.zeros((3, size, size))
    for root in range(1, min(count, size) + 1):
        patch, seen = [(root, 1, 1, 0)], {root}
        for node, _, _, depth in patch:  # grows
            below = children.get(node, [])
            for place, child in enumerate(below, 1):
                if child not in seen and depth + 1 < max_depth:
                    seen.add(child)
                    patch.append((child, place, len(below), depth + 1))
        for node, place, among, depth in patch:
            top = (max_depth - depth) / max_depth
            left = (1 - top) * (0.5 if among == 1 else (place - 1) / (among - 1))
            right = (1 - top) * (1 - left)
            found[:, root - 1, node - 1] += torch.tensor([left, right, top])
    return found


@op("rank_attention", "X RankOffset RankParam", lod="none")
def rank_attention_op(x: Tensor, offsets: Tensor, param: Tensor, *, MaxRank: int = 3) -> Tensor:  # noqa: N803
    """Multiply by weights selected by the ranks of an ad and of the ads shown with it.

    offsets: the ad's rank, then each neighbor's rank and row, int[N, 1 + 2 MaxRank]; 0 means none.
    """
    width = x.shape[1]
    blocks = param.reshape(MaxRank * MaxRank, width, -1)
    own = offsets[:, :1].long() - 1
    other, rows = offsets[:, 1::2].long() - 1, offsets[:, 2::2].long()
    there = (own >= 0) & (other >= 0)
    which = torch.where(there, own * MaxRank + other, 0)
    inputs = x[torch.where(there, rows, 0)] * there[..., None]
    return torch.einsum("nkd,nkdo->no", inputs, blocks[which])


class _HashedRows(torch.autograd.Function):
    """Reads parts of a flat weight.

    As in Fluid, the backward pass itself updates the weight by SGD.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, weight: Tensor, places: Tensor, lr: float) -> Tensor:
        del anchor
        ctx.weight, ctx.places, ctx.lr = weight, places, lr
        return weight.reshape(-1)[places]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        flat = ctx.weight.detach().reshape(-1)
        flat.index_add_(0, ctx.places.reshape(-1), gradients[0].reshape(-1), alpha=-ctx.lr)
        return None, None, None, None


@op(
    "pyramid_hash",
    "X W WhiteList? BlackList?",
    "Out",
    lod="function",
    infer=lambda *_, num_emb, **__: [(-1, num_emb)],
)
def pyramid_hash_op(
    x: Tensor,
    w: Tensor,
    white: Tensor | None,
    black: Tensor | None,
    *,
    lods: Lods,
    num_emb: int,
    space_len: int,
    pyramid_layer: int,
    rand_len: int,
    drop_out_percent: float,
    is_training: bool,
    use_filter: bool,
    lr: float,
    generator: torch.Generator | None = None,
) -> Made:
    """Return the embeddings of all runs of 2 to pyramid_layer ids, or a row of zeros if there are
    none. An embedding is `num_emb / rand_len` pieces of the weight, located by hashes of the ids.
    """
    del white, black
    if use_filter:
        raise ValueError("use_filter=True is not supported; filter the ids before the layer")
    ids = x.reshape(-1).to(torch.float32).numpy()
    places, lengths, empty = [], [], []
    for begin, end in _sizes(lods[0], "X"):
        own = []
        for size in range(2, min(pyramid_layer, end - begin) + 1):
            runs = np.lib.stride_tricks.sliding_window_view(ids[begin:end], size)
            if is_training:
                kept = torch.rand(len(runs), generator=generator).numpy() >= drop_out_percent
                runs = runs[kept]
            if len(runs):
                own.append(_hash_places(runs, num_emb, rand_len, space_len))
        found = torch.cat(own) if own else torch.zeros((1, num_emb), dtype=torch.int64)
        empty.append(torch.full((len(found),), not own))
        places.append(found)
        lengths.append(len(found))
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    rows = _HashedRows.apply(anchor, w, torch.cat(places), lr)  # type: ignore[no-untyped-call]
    rows = torch.where(torch.cat(empty)[:, None], 0.0, rows)
    if not is_training:
        rows = rows * drop_out_percent
    return rows, (offsets_of(torch.tensor(lengths)),)


def _hash_places(runs: Any, num_emb: int, rand_len: int, space_len: int) -> Tensor:
    data = np.ascontiguousarray(runs, "<f4").view(np.uint8).reshape(len(runs), -1)
    begins = [
        xxhash32(data, seed).astype(np.int64) % space_len for seed in range(0, num_emb, rand_len)
    ]
    steps = torch.arange(rand_len)
    return torch.cat([torch.from_numpy(one)[:, None] + steps for one in begins], 1)


# -- layers -----------------------------------------------------------------------------------


@layer
def match_matrix_tensor(
    x: Variable,
    y: Variable,
    channel_num: int,
    act: str | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return x W y for all pairs of rows, in `channel_num` channels; also return x W."""
    helper = LayerHelper("match_matrix_tensor", name)
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[1]:
        raise AssertionError(
            f"x and y must be matrices of the same width, got {x.shape} and {y.shape}"
        )
    shape = [x.shape[1], channel_num, y.shape[1]]
    w = helper.create_parameter(to_param_attr(param_attr), shape, dtype)
    out, middle = helper.new_variable(dtype), helper.new_variable(dtype, stop_gradient=True)
    inputs, outputs = {"X": x, "Y": y, "W": w}, {"Out": out, "Tmp": middle}
    helper.append_op("match_matrix_tensor", inputs, outputs, {"dim_t": channel_num})
    out.lod_level = middle.lod_level = 1
    return helper.activate(out, act), middle


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


@layer
def var_conv_2d(
    input: Variable,
    row: Variable,
    col: Variable,
    input_channel: int,
    output_channel: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    param_attr: Any = None,
    act: str | None = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Convolve matrices whose sizes are the lengths of the sequences in `row` and `col`."""
    helper = LayerHelper("var_conv_2d", name)
    if len(input.shape) != 2:
        raise AssertionError(f"input must be a matrix, got shape {input.shape}")
    kernel, steps = _pair(filter_size), _pair(stride)
    shape = [output_channel, input_channel * kernel[0] * kernel[1]]
    w = helper.create_parameter(to_param_attr(param_attr), shape, dtype)
    attrs = {
        "InputChannel": input_channel,
        "OutputChannel": output_channel,
        "StrideH": steps[0],
        "StrideW": steps[1],
        "KernelH": kernel[0],
        "KernelW": kernel[1],
    }
    inputs = {"X": input, "ROW": row, "COLUMN": col, "W": w}
    out = helper.add("var_conv_2d", inputs, attrs, dtype=dtype)
    out.lod_level = 1
    return helper.activate(out, act)


@layer
def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """Return, for each k in `topks`, the mean of the k largest values in each matrix row."""
    helper = LayerHelper("sequence_topk_avg_pooling")
    inputs = {"X": helper.check_input(input), "ROW": row, "COLUMN": col}
    attrs = {"topks": list(topks), "channel_num": channel_num}
    out = helper.add("sequence_topk_avg_pooling", inputs, attrs, dtype=input.dtype)
    out.lod_level = 1
    return out


@layer
def tree_conv(
    nodes_vector: Variable,
    edge_set: Variable,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: str | None = "tanh",
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """Convolve each node of a tree with its descendants, up to a depth."""
    helper = LayerHelper("tree_conv", name, bias_attr=bias_attr)
    helper.check_input(nodes_vector, "nodes_vector")
    inputs = {"NodesVector": nodes_vector, "EdgeSet": helper.check_input(edge_set, "edge_set")}
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    w = helper.create_parameter(to_param_attr(param_attr), shape, nodes_vector.dtype)
    attrs = {"max_depth": max_depth}
    out = helper.add("tree_conv", {**inputs, "Filter": w}, attrs, dtype=nodes_vector.dtype)
    return helper.activate(helper.append_bias_op(out), act)


@layer
def rank_attention(
    input: Variable,
    rank_offset: Variable,
    rank_param_shape: Sequence[int],
    rank_param_attr: Any,
    max_rank: int = 3,
) -> Variable:
    """Multiply each row and its neighbors by weights that depend on the ranks of both."""
    helper = LayerHelper("rank_attention")
    wanted = input.shape[1] * max_rank * max_rank
    if wanted != rank_param_shape[0]:
        raise AssertionError(f"rank_param_shape[0] must be {wanted}, got {rank_param_shape[0]}")
    attr = to_param_attr(rank_param_attr)
    param = helper.create_parameter(attr, rank_param_shape, input.dtype)
    inputs = {"X": input, "RankOffset": rank_offset, "RankParam": param}
    return helper.add("rank_attention", inputs, {"MaxRank": max_rank}, dtype=input.dtype)


@layer
def search_pyramid_hash(
    input: Variable,
    num_emb: int,
    space_len: int,
    pyramid_layer: int,
    rand_len: int,
    drop_out_percent: float,
    is_training: bool,
    use_filter: bool,
    white_list_len: int,
    black_list_len: int,
    seed: int,
    lr: float,
    param_attr: Any = None,
    param_attr_wl: Any = None,
    param_attr_bl: Any = None,
    name: str | None = None,
    distribute_update_vars: Sequence[str] | None = None,
    dtype: str = "float32",
) -> Variable:
    """Embed all runs of 2 to `pyramid_layer` ids by hashing.

    lr: the learning rate with which the layer updates its own weight; optimizers do not update it.
    """
    helper = LayerHelper("search_pyramid_hash", name)
    if num_emb % rand_len:
        raise ValueError(f"num_emb must be a multiple of rand_len, got {num_emb} and {rand_len}")
    attrs = {"w": param_attr, "white": param_attr_wl, "black": param_attr_bl}
    known = {attr.name for attr in attrs.values() if attr}
    for wanted in distribute_update_vars or ():
        if wanted not in known:
            raise ValueError(
                f"distribute_update_vars contains {wanted!r}, which is not a parameter of the layer"
            )
    made = {}
    sizes = {"w": space_len + rand_len, "white": white_list_len, "black": black_list_len}
    for what, size in sizes.items():
        if size > 0:
            attr = to_param_attr(attrs[what])
            made[what] = helper.create_parameter(attr, [size, 1], dtype)
            made[what].stop_gradient = True
    inputs = {"X": input, "W": made["w"]}
    inputs |= {
        slot: made[what]
        for slot, what in (("WhiteList", "white"), ("BlackList", "black"))
        if what in made
    }
    settings = {
        "num_emb": num_emb,
        "space_len": space_len,
        "pyramid_layer": pyramid_layer,
        "rand_len": rand_len,
        "drop_out_percent": drop_out_percent,
        "is_training": bool(is_training),
        "use_filter": use_filter,
        "seed": seed,
        "lr": lr,
    }
    out = helper.add("pyramid_hash", inputs, settings, dtype=dtype)
    out.lod_level = 1
    return out
