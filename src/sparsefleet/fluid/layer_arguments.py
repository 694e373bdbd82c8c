"""What Fluid's LayerHelper does with the arguments of a layer that users write themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = ["LayerArguments"]


class LayerArguments:
    """Arguments by name, as `LayerHelper("my_layer", **locals())` gets them."""

    kwargs: Mapping[str, Any]

    @property
    def param_attr(self) -> ParamAttr | None:
        return to_param_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | None:
        return to_param_attr(self.kwargs.get("bias_attr"))

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """The inputs as a list, also of one."""
        given = self.kwargs.get(input_param_name, [])
        return [given] if isinstance(given, Variable) else list(given)

    def input(self, input_param_name: str = "input") -> Variable:
        """The one input."""
        inputs = self.multiple_input(input_param_name)
        if len(inputs) != 1:
            raise ValueError(f"one input '{input_param_name}' is wanted, got {len(inputs)}")
        return inputs[0]

    def input_dtype(self, input_param_name: str = "input") -> str:
        """The type that all inputs have."""
        found = {variable.dtype for variable in self.multiple_input(input_param_name)}
        if len(found) != 1:
            raise ValueError(f"inputs must have one dtype, got {sorted(found)}")
        return found.pop()

    def iter_inputs_and_params(
        self, input_param_name: str = "input"
    ) -> Iterator[tuple[Variable, ParamAttr | None]]:
        """Each input with its attr: one for all, or a list."""
        inputs, given = self.multiple_input(input_param_name), self.kwargs.get("param_attr")
        attrs = list(given) if isinstance(given, (list, tuple)) else [given] * len(inputs)
        return iter(zip(inputs, map(to_param_attr, attrs), strict=True))
