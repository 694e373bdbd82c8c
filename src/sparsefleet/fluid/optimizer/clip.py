"""Clip gradients before the update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import (
    Parameter,
    Program,
    Variable,
    default_main_program,
    unique_name,
)
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.clip")

__all__ = [
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "ErrorClipByValue",
    "GradientClipBase",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "append_gradient_clip_ops",
    "error_clip_callback",
    "set_gradient_clip",
]

Pairs = list[tuple[Parameter, Variable]]


class GradientClipBase(ABC):
    """Base class for gradient clipping methods.

    need_clip: a function that returns whether to clip a parameter's gradient; by default, all
        gradients are clipped.
    """

    def __init__(self, need_clip: Callable[[Any], bool] | None = None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise TypeError(
                f"need_clip must be a function that takes a parameter, got {need_clip!r}"
            )
        self._need_clip = need_clip

    def group(self) -> Any:
        """Return the name of the group. Gradients in the same group are clipped together."""
        return id(self)

    def apply(self, pairs: Pairs) -> Pairs:
        """Add operators to the gradients' program; return the gradients to use in the update."""
        known = [(p, g) for p, g in pairs if g is not None]
        chosen = [(p, g) for p, g in known if self._need_clip is None or self._need_clip(p)]
        clipped = {p.name: g for p, g in self._clipped(chosen)} if chosen else {}
        return [(p, clipped.get(p.name, g)) for p, g in known]

    @abstractmethod
    def _clipped(self, pairs: Pairs) -> Pairs:
        """Return the given parameters with their clipped gradients."""

    def __call__(self, params_grads: Pairs) -> Pairs:
        """Call `apply`."""
        return self.apply(params_grads)


class GradientClipByValue(GradientClipBase):
    """Clips each element to min..max; min is -max by default."""

    def __init__(
        self,
        max: float,
        min: float | None = None,
        need_clip: Callable[[Any], bool] | None = None,
    ) -> None:
        super().__init__(need_clip)
        self.max, self.min = float(max), -float(max) if min is None else float(min)

    def _clipped(self, pairs: Pairs) -> Pairs:
        attrs = {"min": self.min, "max": self.max}
        return [(p, derived_gradient("clip_gradient", {"X": g}, attrs)) for p, g in pairs]


class GradientClipByNorm(GradientClipBase):
    """Scales each gradient to a norm of at most clip_norm."""

    def __init__(self, clip_norm: float, need_clip: Callable[[Any], bool] | None = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)

    def _clipped(self, pairs: Pairs) -> Pairs:
        attrs = {"max_norm": self.clip_norm}
        return [(p, derived_gradient("clip_by_norm", {"X": g}, attrs)) for p, g in pairs]


class GradientClipByGlobalNorm(GradientClipBase):
    """Scales a group's gradients to a joint norm of at most clip_norm."""

    def __init__(
        self,
        clip_norm: float,
        group_name: str = "default_group",
        need_clip: Callable[[Any], bool] | None = None,
    ) -> None:
        super().__init__(need_clip)
        self.clip_norm, self.group_name = float(clip_norm), group_name

    def group(self) -> Any:
        return self.group_name

    def _clipped(self, pairs: Pairs) -> Pairs:
        squares = [derived_gradient("squared_l2_norm", {"X": g}) for _, g in pairs]
        factor = derived_gradient("clip_factor", {"X": squares}, {"max_norm": self.clip_norm})
        return [
            (p, derived_gradient("scale_gradient", {"X": g, "Factor": factor})) for p, g in pairs
        ]


ClipByValue, ClipByNorm = GradientClipByValue, GradientClipByNorm
ClipByGlobalNorm = GradientClipByGlobalNorm


class ErrorClipByValue:
    """Clips a variable's gradient to min..max (min is -max by default).

    Used with `Variable._set_error_clip`.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = float(max), -float(max) if min is None else float(min)

    def __str__(self) -> str:
        return f"ByValue, min={self.min:f}, max={self.max:f}"


def error_clip_callback(block: Any, context: Any) -> None:
    """Do nothing, since every backward pass already applies `_set_error_clip`.

    Used with `append_backward(callbacks=[...])`.
    """


def derived_gradient(
    type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None
) -> Variable:
    """Add an operator on gradients to their program; return a new variable with its result."""
    first = next(iter(inputs.values()))
    like: Variable = first[0] if isinstance(first, list) else first
    assert like.block is not None
    name = unique_name.generate(f"{like.name.partition('@')[0]}@GRAD.{type}")
    out = like.block.create_var(name, like.shape, like.dtype, stop_gradient=True)
    like.block.append_op(type, inputs, {"Out": out}, attrs)
    return out


def set_gradient_clip(
    clip: GradientClipBase,
    param_list: Sequence[Parameter | str] | None = None,
    program: Program | None = None,
) -> None:
    """Clip the gradients of these parameters, or of all parameters, in later `minimize` calls."""
    if not isinstance(clip, GradientClipBase):
        raise TypeError(f"clip must be a fluid.clip.GradientClipBy... object, got {clip!r}")
    block = (program or default_main_program()).global_block()
    for item in block.all_parameters() if param_list is None else param_list:
        parameter = block.var(item) if isinstance(item, str) else item
        if not isinstance(parameter, Parameter):
            raise TypeError(f"param_list takes parameters, got {parameter!r}")
        parameter.gradient_clip_attr = clip


def append_gradient_clip_ops(param_grads: Pairs) -> Pairs:
    """Clip gradients as set by `set_gradient_clip` or ParamAttr."""
    groups: dict[Any, tuple[GradientClipBase, Pairs]] = {}
    for parameter, gradient in param_grads:
        clip = parameter.gradient_clip_attr
        if clip is None:
            continue
        first, members = groups.setdefault(clip.group(), (clip, []))
        norm, wanted = (getattr(known, "clip_norm", None) for known in (clip, first))
        if norm != wanted:
            raise ConfigError(
                f"the gradient of '{parameter.name}' has clip_norm {norm}, but "
                f"'{members[0][0].name}' in the same group '{clip.group()}' has {wanted}; use the "
                "same value, or a different group_name"
            )
        members.append((parameter, gradient))
    clipped = {p.name: g for clip, pairs in groups.values() for p, g in clip.apply(pairs)}
    return [(p, clipped.get(p.name, g)) for p, g in param_grads]
