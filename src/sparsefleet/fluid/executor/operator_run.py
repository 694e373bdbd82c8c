"""Run a single operator on the variables in a scope."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.framework import Operator as ProgramOperator
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import Place
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.lowering.body import lod_of_output
from sparsefleet.fluid.lowering.registry import OpDef, find_op, op_types
from sparsefleet.fluid.lowering.shapes import flat_outputs, slot_values

__all__ = ["Operator", "get_all_op_protos"]


class Operator:
    """An operator with the names of its variables, to run in a scope.

    kwargs: variable names by slot (one name or a list), and settings by name.

    >>> scope = Scope()
    >>> scope.var("x").get_tensor().set([1.0, -2.0])
    >>> Operator("abs", X="x", Out="y").run(scope)
    >>> scope.find_var("y").get_tensor().numpy().tolist()
    [1.0, 2.0]
    """

    def __init__(self, type: str, **kwargs: Any) -> None:
        definition = find_op(type)
        if definition is None:
            raise ValueError(f"operator '{type}' is not supported by sparsefleet")
        self._definition = definition
        self._inputs = _slots(definition.inputs, kwargs)
        self._outputs = _slots(definition.outputs, kwargs)
        slots = {slot.name for slot in (*definition.inputs, *definition.outputs)}
        self._attrs = {name: value for name, value in kwargs.items() if name not in slots}

    def type(self) -> str:
        return self._definition.type

    def inputs(self) -> dict[str, list[str]]:
        return self._inputs

    def outputs(self) -> dict[str, list[str]]:
        return self._outputs

    def run(self, scope: Scope, place: Place | None = None) -> None:
        """Compute the outputs from variables in the scope and store them in the scope."""
        del place
        definition = self._definition
        op = ProgramOperator(definition.type, self._inputs, self._outputs, self._attrs)
        settings = {k: v for k, v in self._attrs.items() if k in definition.settings}
        rule = definition.lod_rule(self._attrs)
        if rule == "function":
            settings["lods"] = slot_values(definition, op, lambda name: _lod(scope, name))
        with torch.no_grad():
            result = definition.function(
                *slot_values(definition, op, lambda name: _value(scope, name)), **settings
            )
        if definition.in_place:
            return
        lod: Any = ()
        if rule == "function":
            result, lod = result
        elif rule == "share":
            lods = (_lod(scope, name) for names in self._inputs.values() for name in names)
            lod = next(filter(None, lods), ())
        values = flat_outputs(result)
        place_of = 0
        for slot in definition.outputs:
            names = self._outputs.get(slot.name, [])
            for offset, name in enumerate(names):
                own = lod_of_output(lod, place_of + offset)
                _put(scope, name, values[place_of + offset], own)
            place_of += len(names) if slot.many else 1


def get_all_op_protos() -> list[OpDef]:
    """Return the definitions of all operators."""
    return [found for type in op_types() if (found := find_op(type)) is not None]


def _slots(slots: Any, given: dict[str, Any]) -> dict[str, list[str]]:
    found = {}
    for slot in slots:
        names = given.get(slot.name)
        if names is not None:
            found[slot.name] = [names] if isinstance(names, str) else list(names)
    return found


def _value(scope: Scope, name: str) -> Any:
    held = scope.find_var(name)
    return None if held is None else held.value()


def _lod(scope: Scope, name: str) -> Any:
    held = scope.find_var(name)
    tensor = None if held is None else held.get_tensor()
    return tensor.offsets() if isinstance(tensor, LoDTensor) else ()


def _put(scope: Scope, name: str, value: Any, lod: Any) -> None:
    held = scope.find_var(name) or scope.var(name)
    if isinstance(value, torch.Tensor):
        tensor = held.get_tensor()
        tensor.share(value.detach().clone())
        tensor.set_lod(lod)
    elif value is not None:
        held.hold(value)
