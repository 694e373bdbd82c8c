"""Functions of each element that are cut, bent or learned."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Constant
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = [
    "hard_shrink",
    "hard_swish",
    "log1p",
    "maxout",
    "mish",
    "prelu",
    "selu",
    "softshrink",
    "stanh",
    "thresholded_relu",
]


def _add(type: str, x: Variable, name: str | None = None, **settings: float | None) -> Variable:
    """The operator with those of the settings that are given."""
    helper = LayerHelper(type, name)
    attrs = {key: value for key, value in settings.items() if value is not None}
    return helper.add(type, {"X": helper.check_input(x, "x")}, attrs)


@layer
def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """x, or 0 within threshold (0.5) of 0."""
    return _add("hard_shrink", x, threshold=threshold)


@layer
def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """x nearer to 0 by alpha (0.5), or 0."""
    return _add("softshrink", x, alpha=alpha)


@layer
def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """x above threshold (1), else 0."""
    return _add("thresholded_relu", x, threshold=threshold)


@layer
def hard_swish(
    x: Variable,
    threshold: float = 6.0,
    scale: float = 6.0,
    offset: float = 3.0,
    name: str | None = None,
) -> Variable:
    """x * (x + offset into 0..threshold) / scale."""
    return _add("hard_swish", x, name, threshold=threshold, scale=scale, offset=offset)


@layer
def stanh(
    x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None
) -> Variable:
    """scale_b * tanh(scale_a * x)."""
    return _add("stanh", x, name, scale_a=scale_a, scale_b=scale_b)


@layer
def selu(
    x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None
) -> Variable:
    """scale * x, or scale * alpha * (exp(x) - 1) below 0 (Klambauer et al., 2017)."""
    return _add("selu", x, name, scale=scale, alpha=alpha)


@layer
def mish(x: Variable, threshold: float = 20, name: str | None = None) -> Variable:
    """x * tanh(log(1 + exp(x)))."""
    return _add("mish", x, name, threshold=float(threshold))


@layer
def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """log(1 + x)."""
    helper = LayerHelper("log1p", name)
    made = helper.new_variable() if out is None else out
    helper.append_op("log1p", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """x, or below 0 x times a learned number: mode "all", "channel" or "element"."""
    helper = LayerHelper("prelu", name)
    shapes = {"all": [1], "channel": [1, x.shape[1], 1, 1], "element": [1, *x.shape[1:]]}
    known = to_param_attr(param_attr)
    if mode not in shapes or known is None:
        raise helper.refuse(f"mode must be 'all', 'channel' or 'element', got {mode!r}")
    alpha = helper.create_parameter(
        known, shapes[mode], x.dtype, default_initializer=Constant(0.25)
    )
    return helper.add("prelu", {"X": helper.check_input(x, "x"), "Alpha": alpha}, {"mode": mode})


@layer
def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """The largest of each `groups` channels that follow one another."""
    helper = LayerHelper("maxout", name)
    return helper.add("maxout", {"X": helper.check_input(x, "x")}, {"groups": groups, "axis": axis})
