"""A list of operators and the variables that they name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.call_site import ProgramError, call_site
from sparsefleet.fluid.framework.operator import Operator
from sparsefleet.fluid.framework.parameter import Parameter
from sparsefleet.fluid.lowering.shapes import infer_outputs
from sparsefleet.fluid.variable import Variable

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.program import Program

__all__ = ["Block"]

VariableLike = Variable | str
Slots = Mapping[str, VariableLike | Sequence[VariableLike] | None]


class Block:
    """Operators in order, and the variables of this block; made by the program.

    parent_idx: the block around this one, whose variables it sees; -1 for the outermost. A block
        with a parent is the body of an operator there, which names it by its attr `sub_block`.
    """

    def __init__(self, program: Program, idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []

    # -- variables ----------------------------------------------------------------------------

    def var(self, name: str) -> Variable:
        """A variable of this block by name; ValueError if there is none."""
        return self._known_in(self.vars, name)

    def visible_var(self, name: str) -> Variable:
        """A variable of this block or of one around it; ValueError if there is none."""
        return self._known_in(self.visible_vars(), name)

    _var_recursive = visible_var

    def visible_vars(self) -> ChainMap[str, Variable]:
        """Variables of this block and of those around it, the inner ones first."""
        levels, block = [self.vars], self.parent
        while block is not None:
            levels.append(block.vars)
            block = block.parent
        return ChainMap(*levels)

    @property
    def parent(self) -> Block | None:
        """The block around this one."""
        return None if self.parent_idx < 0 else self.program.blocks[self.parent_idx]

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def all_parameters(self) -> list[Parameter]:
        return [found for found in self.vars.values() if isinstance(found, Parameter)]

    def iter_parameters(self) -> Iterator[Parameter]:
        return iter(self.all_parameters())

    def add_var(self, variable: Variable) -> Variable:
        """Takes a variable in; one of that name that an operator uses must look the same."""
        old = self.vars.get(variable.name)
        if old is not None and old is not variable and self._is_used(old.name):
            if (old.shape, old.dtype, old.lod_level) != (
                variable.shape,
                variable.dtype,
                variable.lod_level,
            ):
                raise ProgramError.at(
                    call_site(),
                    f"variable '{variable.name}'",
                    f"declared as {variable}, but the program uses it as {old}",
                )
            return old
        variable.block = self
        self.vars[variable.name] = variable
        self.program.changed()
        return variable

    def create_var(
        self,
        name: str | None = None,
        shape: Sequence[int | None] = (),
        dtype: Any = "float32",
        lod_level: int = 0,
        **settings: Any,
    ) -> Variable:
        """A new variable; settings as of Variable."""
        name = unique_name.generate("_generated_var") if name is None else name
        return self.add_var(Variable(name, shape, dtype, lod_level, **settings))

    def create_parameter(
        self, name: str, shape: Sequence[int], dtype: Any = "float32", **settings: Any
    ) -> Parameter:
        """A parameter; of one of that name already there, that one, if it has this shape."""
        old = self.vars.get(name)
        if old is None:
            made = self.add_var(Parameter(name, shape, dtype, **settings))
            assert isinstance(made, Parameter)
            return made
        if not isinstance(old, Parameter) or old.shape != tuple(shape):
            raise ProgramError.at(
                call_site(),
                f"parameter '{name}'",
                f"wanted with shape {list(shape)}, but there is {old}; parameters of one name "
                "are shared",
            )
        return old

    # -- operators ----------------------------------------------------------------------------

    def append_op(
        self,
        type: str,
        inputs: Slots | None = None,
        outputs: Slots | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Adds an operator at the end and gives its outputs the shapes they will have."""
        made = Operator(
            type,
            _names(inputs),
            _names(outputs),
            attrs,
            role=self.program.role,
            site=call_site(),
        )
        infer_outputs(self, made)
        self.ops.append(made)
        made.block = self
        self.program.changed()
        return made

    def hold_ops(self, ops: Iterable[Operator]) -> None:
        """Has these operators in the place of its own."""
        self.ops = list(ops)
        for op in self.ops:
            op.block = self
        self.program.changed()

    def _is_used(self, name: str) -> bool:
        return any(name in op.input_arg_names or name in op.output_arg_names for op in self.ops)

    def _known_in(self, variables: Mapping[str, Variable], name: str) -> Variable:
        found = variables.get(name)
        if found is None:
            names = list(variables)
            known = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ProgramError.at(
                call_site(),
                f"variable '{name}'",
                f"not in this program, which has {known or 'no variables'}",
            )
        return found

    def __str__(self) -> str:
        lines = [f"    {variable!r}" for variable in self.vars.values()]
        lines += [f"    {op!r}" for op in self.ops]
        inside = f" in block {self.parent_idx}" if self.parent_idx >= 0 else ""
        return "\n".join([f"{{ // block {self.idx}{inside}", *lines, "}"])


def _names(slots: Slots | None) -> dict[str, list[str]]:
    found = {}
    for slot, value in (slots or {}).items():
        if value is not None:
            items = [value] if isinstance(value, (Variable, str)) else value
            found[slot] = [item if isinstance(item, str) else item.name for item in items]
    return found
