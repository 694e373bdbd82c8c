"""How good predictions are, counted while a program runs."""

from __future__ import annotations

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.indexing import topk

__all__ = ["accuracy", "auc"]


@layer
def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """The share of rows whose label is among the k best: float32[1]."""
    helper = LayerHelper("accuracy")
    values, indices = topk(input, k=k)
    result = helper.new_variable("float32", stop_gradient=True)
    outputs = {
        "Accuracy": result,
        "Correct": correct or helper.new_variable("int32", stop_gradient=True),
        "Total": total or helper.new_variable("int32", stop_gradient=True),
    }
    inputs = {"Out": values, "Indices": indices, "Label": helper.check_input(label, "label")}
    helper.append_op("accuracy", inputs, outputs)
    return result


@layer
def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the curve so far, that of the last slide_steps batches, and the counts.

    input: probabilities, the last column that of the label 1. The counts are kept in the scope:
    set them to zero to begin anew. curve, topk: without effect, as in Fluid.
    """
    del curve, topk
    helper = LayerHelper("auc")
    width = num_thresholds + 1
    batch_width = (1 + slide_steps) * width + 1 if slide_steps else width
    states = [
        helper.create_state(unique_name.generate("_generated_var"), shape, "int64")
        for shape in ([batch_width], [batch_width], [1, width], [1, width])
    ]
    found = []
    for positives, negatives, steps in ((*states[2:], 0), (*states[:2], slide_steps)):
        out = helper.new_variable("float64", stop_gradient=True)
        inputs = {"Predict": input, "Label": label, "StatPos": positives, "StatNeg": negatives}
        attrs = {"num_thresholds": num_thresholds, "slide_steps": steps}
        helper.append_op("auc", inputs, {"AUC": out}, attrs)
        found.append(out)
    return found[0], found[1], states
