"""Elements by number."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = ["argsort", "gather", "gather_nd", "one_hot", "scatter", "topk"]


@layer
def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """The k largest of each row, and where they are: int64."""
    helper = LayerHelper("top_k", name)
    values = helper.new_variable(helper.check_input(input).dtype, stop_gradient=True)
    indices = helper.new_variable("int64", stop_gradient=True)
    inputs, attrs = {"X": input}, {"k": k}
    if isinstance(k, Variable):
        inputs, attrs = {"X": input, "K": k}, {}
    helper.append_op("top_k", inputs, {"Out": values, "Indices": indices}, attrs)
    return values, indices


@layer
def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sorted, and where the elements were: int64."""
    helper = LayerHelper("argsort", name)
    values = helper.new_variable(helper.check_input(input).dtype, stop_gradient=True)
    indices = helper.new_variable("int64", stop_gradient=True)
    attrs = {"axis": axis, "descending": descending}
    helper.append_op("argsort", {"X": input}, {"Out": values, "Indices": indices}, attrs)
    return values, indices


@layer
def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Rows by number."""
    del overwrite
    helper = LayerHelper("gather")
    return helper.add("gather", {"X": helper.check_input(input), "Index": index})


@layer
def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Elements or slices by their first numbers: index int[..., K]."""
    helper = LayerHelper("gather_nd", name)
    return helper.add("gather_nd", {"X": helper.check_input(input), "Index": index})


@layer
def scatter(
    input: Variable,
    index: Variable,
    updates: Variable,
    name: str | None = None,
    overwrite: bool = True,
) -> Variable:
    """With these rows in the place of others, or added up there."""
    helper = LayerHelper("scatter", name)
    inputs = {"X": helper.check_input(input), "Ids": index, "Updates": updates}
    return helper.add("scatter", inputs, {"overwrite": overwrite})


@layer
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """ids int64[..., 1] -> float32[..., depth], 1 at the id; allow_out_of_range: else all 0."""
    return one_hot_rows("one_hot", input, depth, allow_out_of_range)


def one_hot_rows(
    type: str, ids: Variable, depth: int | Variable, allow_out_of_range: bool
) -> Variable:
    """By the operator `one_hot` or `one_hot_v2`."""
    helper = LayerHelper(type)
    inputs = {"X": helper.check_input(ids)}
    attrs: dict[str, int] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["DepthTensor"] = depth
    else:
        attrs["depth"] = depth
    return helper.add(type, inputs, attrs, stop_gradient=True)
