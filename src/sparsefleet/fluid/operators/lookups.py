"""Find, count, hash and scatter elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.filling import fill_constant
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.shaping import split
from sparsefleet.fluid.operators.xxhash import xxhash64

__all__ = [
    "gather_tree",
    "hash",
    "index_sample",
    "index_select",
    "mean_iou",
    "multiplex",
    "nonzero",
    "roll",
    "scatter_nd",
    "scatter_nd_add",
    "shard_index",
    "unique",
    "unique_with_counts",
    "where",
]

Tensor = torch.Tensor


def _open_rows(x: Shape, **settings: Any) -> list[Shape]:
    del settings
    return [(-1, len(x))]


@op("where_index", "Condition", lod="none", infer=_open_rows)
def where_index(condition: Tensor) -> Tensor:
    """Return the positions of all nonzero elements: int64[K, rank]."""
    return condition.nonzero()


def _unique_shapes(x: Shape, **settings: Any) -> list[Shape]:
    del settings
    return [(-1,), x, (-1,)]


@op("unique", "X", "Out Index Count?", lod="none", infer=_unique_shapes)
def unique_op(x: Tensor, *, index_dtype: str = "int32") -> list[Tensor]:
    """Return the distinct values in order of appearance, each element's index among them, and the
    counts.
    """
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    firsts = torch.full((len(values),), len(x)).scatter_reduce(
        0, inverse, torch.arange(len(x)), "amin"
    )
    order = firsts.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    kind = getattr(torch, index_dtype)
    return [values[order], rank[inverse].to(kind), counts[order].to(kind)]


@op("scatter_nd_add", "X Index Updates", lod="none")
def scatter_nd_add_op(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """Add updates to x at the positions in index int[..., K]."""
    return x.index_put(index.long().unbind(-1), updates, accumulate=True)


@op("index_select", "X Index", lod="none")
def index_select_op(x: Tensor, index: Tensor, *, dim: int = 0) -> Tensor:
    return x.index_select(dim, index.reshape(-1).long())


@op("index_sample", "X Index", lod="none")
def index_sample_op(x: Tensor, index: Tensor) -> Tensor:
    """Return the matrix whose element [i, j] is x[i, index[i, j]]."""
    return x.gather(1, index.long())


@op("multiplex", "Ids X*", lod="none")
def multiplex_op(ids: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return rows chosen from the tensors: row i comes from tensor ids[i]."""
    rows = torch.arange(ids.shape[0], device=ids.device)
    return torch.stack(tensors)[ids.reshape(-1).long(), rows]


@op("shard_index", "X")
def shard_index_op(
    x: Tensor, *, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Tensor:
    """Map ids to indices within their shard, and ids in other shards to ignore_value."""
    size = -(-index_num // nshards)
    if not x.is_meta and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < index_num:
        raise ValueError(f"ids must be in 0..{index_num - 1}, got {x.min()}..{x.max()}")
    inside = torch.div(x, size, rounding_mode="floor") == shard_id
    return torch.where(inside, x % size, ignore_value)


def _hash_shape(x: Shape, **settings: Any) -> list[Shape]:
    return [(*x[:-1], settings["num_hash"], 1)]


@op("hash", "X", infer=_hash_shape)
def hash_ids(x: Tensor, *, num_hash: int = 1, mod_by: int = 100000) -> Tensor:
    """Hash rows of ids [N, K] to numbers below mod_by: [N, num_hash, 1], in the ids' dtype."""
    data = x.contiguous().reshape(-1, x.shape[-1]).cpu().numpy().view("uint8")
    found = [xxhash64(data, seed) % mod_by for seed in range(num_hash)]
    stacked = torch.stack([torch.from_numpy(numbers.astype("int64")) for numbers in found], 1)
    return stacked.reshape(*x.shape[:-1], num_hash, 1).to(x.device, x.dtype)


@op("gather_tree", "Ids Parents", lod="none")
def gather_tree_op(ids: Tensor, parents: Tensor) -> Tensor:
    """Trace whole beams [T, B, K] back from their last words through the parents of each step."""
    if ids.is_meta:
        return torch.empty_like(ids)
    out = ids.clone()
    beam = torch.arange(ids.shape[2]).expand(ids.shape[1:]).to(parents.dtype)
    for step in range(len(ids) - 1, -1, -1):
        out[step] = ids[step].gather(1, beam.long())
        beam = parents[step].gather(1, beam.long())
    return out


@op("mean_iou", "Predictions Labels", "OutMeanIou OutWrong OutCorrect", lod="none")
def mean_iou_op(predictions: Tensor, labels: Tensor, *, num_classes: int) -> list[Tensor]:
    """Return the mean over classes of correct / (correct + wrong), and each class's two counts."""
    if predictions.is_meta:
        counts = torch.empty(num_classes, dtype=torch.int32, device="meta")
        return [torch.empty(1, device="meta"), counts, counts]
    found, wanted = predictions.reshape(-1).long(), labels.reshape(-1).long()
    hit = found == wanted
    right = torch.bincount(found[hit], minlength=num_classes)
    wrong = torch.bincount(found[~hit], minlength=num_classes)
    wrong = wrong + torch.bincount(wanted[~hit], minlength=num_classes)
    total = right + wrong
    valid = (total > 0).sum().clamp(min=1)
    mean = (right / total.clamp(min=1)).sum() / valid
    return [mean.float().reshape(1), wrong.int(), right.int()]


@op("roll", "X", lod="none")
def roll_op(x: Tensor, *, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    return torch.roll(x, list(shifts), list(dims))


@layer
def where(condition: Variable, x: Variable | None = None, y: Variable | None = None) -> Variable:
    """Return the positions where the condition holds, int64[K, rank].

    Given x and y, return x where the condition holds and y elsewhere.
    """
    helper = LayerHelper("where_index" if x is None and y is None else "where")
    helper.check_input(condition, "condition")
    if x is None and y is None:
        return helper.add(
            "where_index", {"Condition": condition}, dtype="int64", stop_gradient=True
        )
    inputs = {
        "Condition": condition,
        "X": helper.check_input(x, "x"),
        "Y": helper.check_input(y, "y"),
    }
    return helper.add("where", inputs)


@layer
def nonzero(input: Variable, as_tuple: bool = False) -> Variable | tuple[Variable, ...]:
    """Return the positions of nonzero elements: int64[K, rank], or one column per axis."""
    places = where(input)
    if not as_tuple:
        return places
    rank = len(input.shape)
    return (places,) if rank == 1 else tuple(split(places, rank, dim=1))


def _unique(type: str, x: Variable, dtype: str, with_counts: bool) -> tuple[Variable, ...]:
    helper = LayerHelper(type)
    kind = dtype_name(dtype)
    if len(helper.check_input(x, "x").shape) != 1 or kind not in ("int32", "int64"):
        raise helper.refuse(
            f"x must have one axis and dtype must be int32 or int64, got {x}, {dtype!r}"
        )
    out = helper.new_variable(x.dtype, stop_gradient=True)
    index = helper.new_variable(kind, stop_gradient=True)
    outputs = {"Out": out, "Index": index}
    if with_counts:
        outputs["Count"] = helper.new_variable(kind, stop_gradient=True)
    helper.append_op("unique", {"X": x}, outputs, {"index_dtype": kind})
    return tuple(outputs.values())


@layer
def unique(x: Variable, dtype: str = "int32") -> tuple[Variable, ...]:
    """Return the distinct values of x [N] in order of appearance, and each element's index among
    them.
    """
    return _unique("unique", x, dtype, False)


@layer
def unique_with_counts(x: Variable, dtype: str = "int32") -> tuple[Variable, ...]:
    """Return the results of `unique`, and the count of each distinct value."""
    return _unique("unique_with_counts", x, dtype, True)


@layer
def scatter_nd_add(
    ref: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """Add updates to ref at the positions in index int[..., K]."""
    helper = LayerHelper("scatter_nd_add", name)
    inputs = {
        "X": helper.check_input(ref, "ref"),
        "Index": helper.check_input(index, "index"),
        "Updates": helper.check_input(updates, "updates"),
    }
    return helper.add("scatter_nd_add", inputs)


@layer
def scatter_nd(
    index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None
) -> Variable:
    """Return zeros of this shape with updates added at the positions in index."""
    return scatter_nd_add(fill_constant(shape, updates.dtype, 0.0), index, updates, name)


@layer
def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """Select slices along an axis by index."""
    helper = LayerHelper("index_select")
    inputs = {"X": helper.check_input(input), "Index": helper.check_input(index, "index")}
    return helper.add("index_select", inputs, {"dim": dim})


@layer
def index_sample(x: Variable, index: Variable) -> Variable:
    """Select from each row of x [N, M] the elements at index [N, K]."""
    helper = LayerHelper("index_sample")
    inputs = {"X": helper.check_input(x, "x"), "Index": helper.check_input(index, "index")}
    return helper.add("index_sample", inputs)


@layer
def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Return rows chosen from the variables: row i comes from variable index[i], int32[N, 1]."""
    helper = LayerHelper("multiplex")
    if len(inputs) < 2:
        raise helper.refuse(f"expected at least two inputs, got {len(inputs)}")
    found = {"Ids": helper.check_input(index, "index"), "X": list(inputs)}
    return helper.add("multiplex", found)


@layer
def shard_index(
    input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Variable:
    """Map ids to indices within shard `shard_id`, and ids in other shards to ignore_value."""
    helper = LayerHelper("shard_index")
    if not 0 <= shard_id < nshards:
        raise helper.refuse(f"shard_id must be in 0..{nshards - 1}, got {shard_id}")
    attrs = op_settings("shard_index", locals())
    out = helper.add("shard_index", {"X": helper.check_input(input)}, attrs)
    out.stop_gradient = True
    return out


@layer
def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Hash rows of ids [N, K] to num_hash numbers below hash_size: int64[N, num_hash, 1]."""
    helper = LayerHelper("hash", name)
    attrs = {"num_hash": num_hash, "mod_by": hash_size}
    inputs = {"X": helper.check_input(input)}
    return helper.add("hash", inputs, attrs, dtype=input.dtype, stop_gradient=True)


@layer
def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Trace the ids of whole beams back from their last words: [T, B, K]."""
    helper = LayerHelper("gather_tree")
    inputs = {"Ids": helper.check_input(ids, "ids"), "Parents": helper.check_input(parents)}
    return helper.add("gather_tree", inputs)


@layer
def mean_iou(
    input: Variable, label: Variable, num_classes: int
) -> tuple[Variable, Variable, Variable]:
    """Return the mean intersection over union, and wrong and correct counts per class."""
    helper = LayerHelper("mean_iou")
    outs = [helper.new_variable(kind, stop_gradient=True) for kind in ("float32", "int32", "int32")]
    inputs = {"Predictions": helper.check_input(input), "Labels": helper.check_input(label)}
    outputs = dict(zip(("OutMeanIou", "OutWrong", "OutCorrect"), outs, strict=True))
    helper.append_op("mean_iou", inputs, outputs, {"num_classes": num_classes})
    return outs[0], outs[1], outs[2]


@layer
def roll(
    input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Variable:
    """Shift elements along axes, wrapping around at the end."""
    helper = LayerHelper("roll")
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    if axes and len(axes) != len(moves):
        raise helper.refuse(
            f"got {len(moves)} shifts and {len(axes)} dims, expected one shift per dim"
        )
    return helper.add("roll", {"X": helper.check_input(input)}, {"shifts": moves, "dims": axes})
