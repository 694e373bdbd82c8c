"""From frames to symbols: CTC, and the distance of texts."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = ["edit_distance", "warpctc"]


@layer
def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """The loss of connectionist temporal classification (Graves et al. 2006): [B, 1].

    input: logits [N, C] with a LoD, or [T, B, C] with input_length; label: int [M, 1] with a LoD,
    or [B, L] with label_length. norm_by_times: gradients are divided by the number of frames.
    """
    helper = LayerHelper("warpctc")
    if (input_length is None) != (label_length is None):
        raise helper.refuse("input_length and label_length are given together")
    inputs = {
        "Logits": helper.check_input(input),
        "Label": helper.check_input(label, "label"),
        "LogitsLength": input_length,
        "LabelLength": label_length,
    }
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    made = helper.add("warpctc", inputs, attrs, slot="Loss")
    made.dtype = input.dtype
    return made


@layer
def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Insertions, deletions and changes from input to label, text by text: [B, 1], and B: [1].

    Both: int64 [N, 1] with a LoD, or [B, T] with their lengths. normalized: divided by the length
    of the label.
    """
    helper = LayerHelper("edit_distance")
    if (input_length is None) != (label_length is None):
        raise helper.refuse("input_length and label_length are given together")
    inputs = {
        "Hyps": helper.check_input(input),
        "Refs": helper.check_input(label, "label"),
        "HypsLength": input_length,
        "RefsLength": label_length,
    }
    out = helper.new_variable("float32", stop_gradient=True)
    count = helper.new_variable("int64", stop_gradient=True)
    attrs = {"normalized": normalized, "ignored_tokens": list(ignored_tokens or ())}
    helper.append_op("edit_distance", inputs, {"Out": out, "SequenceNum": count}, attrs)
    return out, count
