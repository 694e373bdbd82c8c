"""Elements found, numbered, hashed and put back."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.filling import fill_constant
from sparsefleet.fluid.layers.shaping import split

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


@layer
def where(condition: Variable, x: Variable | None = None, y: Variable | None = None) -> Variable:
    """The places at which the condition holds, int64[K, rank]; or x there and y elsewhere."""
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
    """The places of elements that are not 0: int64[K, rank], or a column for each axis."""
    places = where(input)
    if not as_tuple:
        return places
    rank = len(input.shape)
    return (places,) if rank == 1 else tuple(split(places, rank, dim=1))


def _unique(type: str, x: Variable, dtype: str, with_counts: bool) -> tuple[Variable, ...]:
    helper = LayerHelper(type)
    kind = dtype_name(dtype)
    if len(helper.check_input(x, "x").shape) != 1 or kind not in ("int32", "int64"):
        raise helper.refuse(f"takes x of one axis, and dtype int32 or int64, got {x}, {dtype!r}")
    out = helper.new_variable(x.dtype, stop_gradient=True)
    index = helper.new_variable(kind, stop_gradient=True)
    outputs = {"Out": out, "Index": index}
    if with_counts:
        outputs["Count"] = helper.new_variable(kind, stop_gradient=True)
    helper.append_op("unique", {"X": x}, outputs, {"index_dtype": kind})
    return tuple(outputs.values())


@layer
def unique(x: Variable, dtype: str = "int32") -> tuple[Variable, ...]:
    """The different values of x [N] in the order they come, and which one each element is."""
    return _unique("unique", x, dtype, False)


@layer
def unique_with_counts(x: Variable, dtype: str = "int32") -> tuple[Variable, ...]:
    """As `unique`, and how often each value is there."""
    return _unique("unique_with_counts", x, dtype, True)


@layer
def scatter_nd_add(
    ref: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """ref with updates added at the places in index int[..., K]."""
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
    """Zeros of this shape with updates added at the places in index."""
    return scatter_nd_add(fill_constant(shape, updates.dtype, 0.0), index, updates, name)


@layer
def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """Slices along an axis by number."""
    helper = LayerHelper("index_select")
    inputs = {"X": helper.check_input(input), "Index": helper.check_input(index, "index")}
    return helper.add("index_select", inputs, {"dim": dim})


@layer
def index_sample(x: Variable, index: Variable) -> Variable:
    """From each row of x [N, M] the elements with the numbers in index [N, K]."""
    helper = LayerHelper("index_sample")
    inputs = {"X": helper.check_input(x, "x"), "Index": helper.check_input(index, "index")}
    return helper.add("index_sample", inputs)


@layer
def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Row i of the variable with number index[i]: index int32[N, 1]."""
    helper = LayerHelper("multiplex")
    if len(inputs) < 2:
        raise helper.refuse(f"takes at least two inputs, got {len(inputs)}")
    found = {"Ids": helper.check_input(index, "index"), "X": list(inputs)}
    return helper.add("multiplex", found)


@layer
def shard_index(
    input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Variable:
    """Ids as numbers within shard `shard_id`; ignore_value for those of other shards."""
    helper = LayerHelper("shard_index")
    if not 0 <= shard_id < nshards:
        raise helper.refuse(f"shard_id must be in 0..{nshards - 1}, got {shard_id}")
    attrs = {
        "index_num": index_num,
        "nshards": nshards,
        "shard_id": shard_id,
        "ignore_value": ignore_value,
    }
    out = helper.add("shard_index", {"X": helper.check_input(input)}, attrs)
    out.stop_gradient = True
    return out


@layer
def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Rows of ids [N, K] to num_hash numbers below hash_size: int64[N, num_hash, 1]."""
    helper = LayerHelper("hash", name)
    attrs = {"num_hash": num_hash, "mod_by": hash_size}
    inputs = {"X": helper.check_input(input)}
    return helper.add("hash", inputs, attrs, dtype=input.dtype, stop_gradient=True)


@layer
def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """The ids of whole beams, from their ends back: [T, B, K]."""
    helper = LayerHelper("gather_tree")
    inputs = {"Ids": helper.check_input(ids, "ids"), "Parents": helper.check_input(parents)}
    return helper.add("gather_tree", inputs)


@layer
def mean_iou(
    input: Variable, label: Variable, num_classes: int
) -> tuple[Variable, Variable, Variable]:
    """The mean over classes of overlap / union, and wrong and right elements of each."""
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
    """Moved along axes, what falls out at the end coming in at the beginning."""
    helper = LayerHelper("roll")
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    if axes and len(axes) != len(moves):
        raise helper.refuse(f"{len(moves)} shifts and {len(axes)} dims: wanted as many")
    return helper.add("roll", {"X": helper.check_input(input)}, {"shifts": moves, "dims": axes})
