"""Layers of click-rate models."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = ["continuous_value_model", "filter_by_instag"]


@layer
def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """The first two columns of [N, D], shows and clicks, as logarithms; or without them.

    cvm: shows and clicks [N, 2], which are those columns' gradient.
    """
    helper = LayerHelper("cvm")
    inputs = {"X": helper.check_input(input), "CVM": helper.check_input(cvm, "cvm")}
    if len(input.shape) != 2 or 0 <= input.shape[1] < 2:
        raise helper.refuse(f"takes rows of at least two columns, got {input}")
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
    """The sequences of ins that have one of the tags, and a weight 1 for each of them.

    ins_tag: a sequence of tags for each. If none is left, one row of out_val_if_empty and weight 0.
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
