"""Operators, the steps of a program. Each names a function and the variables it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from sparsefleet.fluid.framework.call_site import CallSite

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block

__all__ = ["OpRole", "Operator", "Role", "number_of_role", "role_of_number"]

Role = Literal["forward", "backward", "optimize", "schedule"]


class OpRole(IntEnum):
    """The purpose of an operator, as Fluid numbers it in the attr `op_role`."""

    Forward = 0
    Backward = 1
    Optimize = 2
    RPC = 4
    Dist = 8
    LRSched = 16
    Loss = 256


_NUMBERS: dict[Role, OpRole] = {
    "forward": OpRole.Forward,
    "backward": OpRole.Backward,
    "optimize": OpRole.Optimize,
    "schedule": OpRole.LRSched,
}


def number_of_role(role: Role) -> OpRole:
    """Return Fluid's number for a role."""
    return _NUMBERS[role]


def role_of_number(number: int) -> Role:
    """Return the role with this number in Fluid; sums of numbers name the first that fits."""
    fitting = (role for role, bit in reversed(_NUMBERS.items()) if bit & int(number))
    return next(fitting, "forward")


class Operator:
    """An operator in a block.

    inputs, outputs: slot -> names of variables, for the slots that the operator's type declares.
    attrs: numbers, strings, booleans, and lists of them.
    site: the user's line that added the operator.

    >>> Operator("relu", {"X": ["a"]}, {"Out": ["b"]})
    {Out=['b']} = relu(inputs={X=['a']})
    """

    def __init__(
        self,
        type: str,
        inputs: Mapping[str, Sequence[str]],
        outputs: Mapping[str, Sequence[str]],
        attrs: Mapping[str, Any] | None = None,
        *,
        role: Role = "forward",
        site: CallSite | None = None,
    ) -> None:
        self.type = type
        self.inputs = {slot: list(names) for slot, names in inputs.items()}
        self.outputs = {slot: list(names) for slot, names in outputs.items()}
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.role: Role = role
        self.site = site
        self.block: Block | None = None
        """The block that contains the operator."""

    @property
    def input_names(self) -> list[str]:
        """Return the input slots."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """Return the output slots."""
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """Return the names of the variables that the operator reads."""
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        """Return the names of the variables that the operator writes."""
        return [name for names in self.outputs.values() for name in names]

    @property
    def attr_names(self) -> list[str]:
        return list(self.all_attrs())

    def input(self, name: str) -> list[str]:
        """Return the names of the variables in a slot."""
        return list(self.inputs.get(name, []))

    def output(self, name: str) -> list[str]:
        """Return the names of the variables in a slot."""
        return list(self.outputs.get(name, []))

    def attr(self, name: str) -> Any:
        """Return an attr. Raises KeyError if there is no attr with that name."""
        return self.all_attrs()[name]

    def all_attrs(self) -> dict[str, Any]:
        """Return all attrs by name, and the operator's role as `op_role`."""
        return {**self.attrs, "op_role": int(number_of_role(self.role))}

    def _set_attr(self, name: str, value: Any) -> None:
        """Change an attr. The change takes effect at the next run."""
        if name == "op_role":
            self.role = role_of_number(value)
        else:
            self.attrs[name] = value
        if self.block is not None:
            self.block.program.changed()

    def has_attr(self, name: str) -> bool:
        return name in self.attrs or name == "op_role"

    @property
    def has_sub_block(self) -> bool:
        """Return whether the operator has a body, the block whose index is its attr `sub_block`."""
        return "sub_block" in self.attrs

    def copy(self) -> Operator:
        """Return an independent copy."""
        return Operator(
            self.type, self.inputs, self.outputs, self.attrs, role=self.role, site=self.site
        )

    def __repr__(self) -> str:
        settings = "".join(f", {name} = {value!r}" for name, value in self.attrs.items())
        return f"{_slots(self.outputs)} = {self.type}(inputs={_slots(self.inputs)}{settings})"

    def to_string(self, throw_on_error: bool = False) -> str:
        """Return the operator as text."""
        del throw_on_error
        return repr(self)

    __str__ = __repr__


def _slots(slots: Mapping[str, Sequence[str]]) -> str:
    return "{" + ", ".join(f"{slot}={list(names)}" for slot, names in slots.items()) + "}"
