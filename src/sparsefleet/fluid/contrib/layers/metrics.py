"""Sums over all batches from which errors and click rates are made."""

from __future__ import annotations

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = ["ctr_metric_bundle"]


@layer
def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Squared error, absolute error, predictions, their sigmoids, clicks, examples: sums so far.

    input, label: float32[N, 1]. The six sums are float32[1] and kept in the scope.
    """
    helper = LayerHelper("ctr_metric_bundle")
    if helper.check_input(input).shape != helper.check_input(label, "label").shape:
        raise helper.refuse(f"input and label must have one shape, got {input} and {label}")
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
    names[:2] = names[1::-1]  # in Fluid the absolute error comes first
    sums = [helper.create_state(name, [1], "float32") for name in names]
    for value, total in zip(batch, sums, strict=True):
        helper.append_op("elementwise_add", {"X": value, "Y": total}, {"Out": total})
    return tuple(sums)
