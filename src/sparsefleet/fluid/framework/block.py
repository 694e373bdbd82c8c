"""Blocks, which are lists of operators and the variables they use."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.fluid.framework import unique_name
from sparsefleet.fluid.framework.call_site import ProgramError, call_site
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.operator import Operator
from sparsefleet.fluid.framework.variable import Parameter, Variable
from sparsefleet.fluid.lowering import shapes

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.program import Program

__all__ = ["Block"]

VariableLike = Variable | str
Slots = Mapping[str, VariableLike | Sequence[VariableLike] | None]


class Block:
    """A list of operators and their variables; created by the program.

    parent_idx: the enclosing block, whose variables are visible here; -1 for the outermost. A block
        with a parent is the body of an operator in the parent, whose attr `sub_block` refers to it.
    """

    def __init__(self, program: Program, idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []

    # -- variables ----------------------------------------------------------------------------

    def var(self, name: str) -> Variable:
        """Return this block's variable with this name; raise ValueError if there is none."""
        return self._known_in(self.vars, name)

    def visible_var(self, name: str) -> Variable:
        """Return a variable in this or an enclosing block; raise ValueError if there is none."""
        return self._known_in(self.visible_vars(), name)

    _var_recursive = visible_var

    def visible_vars(self) -> ChainMap[str, Variable]:
        """Yield the variables in this and the enclosing blocks, inner ones first."""
        levels, block = [self.vars], self.parent
        while block is not None:
            levels.append(block.vars)
            block = block.parent
        return ChainMap(*levels)

    @property
    def parent(self) -> Block | None:
        """Return the enclosing block."""
        return None if self.parent_idx < 0 else self.program.blocks[self.parent_idx]

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def all_parameters(self) -> list[Parameter]:
        return [found for found in self.vars.values() if isinstance(found, Parameter)]

    def learned_parameters(self) -> list[Parameter]:
        """Return the parameters, except those that the forward pass sets, such as running means."""
        kept = {name for op in self.ops if op.role == "forward" for name in op.output_arg_names}
        return [p for p in self.all_parameters() if p.trainable or p.name not in kept]

    def iter_parameters(self) -> Iterator[Parameter]:
        return iter(self.all_parameters())

    def add_var(self, variable: Variable) -> Variable:
        """Add a variable. If an operator uses one with the same name, the two must match."""
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
        shape: Sequence[int | None] | None = None,
        dtype: Any = None,
        lod_level: int | None = None,
        *,
        initializer: Any = None,
        error_clip: Any = None,
        capacity: int | None = None,
        belong_to_optimizer: bool = False,
        **settings: Any,
    ) -> Variable:
        """Create a variable; see `Variable` for the settings.

        initializer: adds an operator to this block that fills the variable.
        capacity, belong_to_optimizer: accepted, as in Fluid, but have no effect.

        If a variable with this name exists, shape, dtype, LoD level and persistable default to its
        values and must match them. Otherwise, the default is float32 with unknown shape.
        """
        name = unique_name.generate("_generated_var") if name is None else name
        if settings.get("persistable", False) is None:
            del settings["persistable"]
        old = self.vars.get(name)
        if old is not None:
            _check_redeclared(old, shape, dtype, lod_level, settings)
            settings.setdefault("persistable", old.persistable)
        del capacity, belong_to_optimizer
        made = self.add_var(
            Variable(
                name,
                (() if old is None else old.shape) if shape is None else shape,
                ("float32" if old is None else old.dtype) if dtype is None else dtype,
                (0 if old is None else old.lod_level) if lod_level is None else lod_level,
                **settings,
            )
        )
        if error_clip is not None:
            made.error_clip = error_clip
        if initializer is not None:
            initializer(made, self)
        return made

    def _clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """Add a copy of another program's variable, persistable by default."""
        made = var.copy()
        made.persistable = force_persistable or var.persistable
        return self.add_var(made)

    def create_parameter(
        self,
        name: str | None = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        *,
        initializer: Any = None,
        **settings: Any,
    ) -> Parameter:
        """Create a parameter, or return the existing one with that name and shape.

        initializer: adds an operator to this block that fills a new parameter.
        """
        name = unique_name.generate("_generated_var") if name is None else name
        old = self.vars.get(name)
        if old is None:
            made = self.add_var(Parameter(name, shape, dtype, **settings))
            assert isinstance(made, Parameter)
            if initializer is not None:
                initializer(made, self)
            return made
        if not isinstance(old, Parameter) or old.shape != tuple(shape):
            raise ProgramError.at(
                call_site(),
                f"parameter '{name}'",
                f"expected shape {list(shape)}, but {old} exists; parameters with the same name "
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
        """Append an operator and infer the shapes of its outputs."""
        made = Operator(
            type,
            _names(inputs),
            _names(outputs),
            attrs,
            role=self.program.role,
            site=call_site(),
        )
        shapes.infer_outputs(self, made)
        self.ops.append(made)
        made.block = self
        self.program.changed()
        return made

    def _insert_op(self, index: int, **settings: Any) -> Operator:
        """Add an operator before the one at this index; see `append_op` for the settings."""
        made = self.append_op(**settings)
        self.ops.insert(index, self.ops.pop())
        return made

    def _prepend_op(self, **settings: Any) -> Operator:
        """Add an operator before all others; see `append_op` for the settings."""
        return self._insert_op(0, **settings)

    def _remove_op(self, index: int) -> None:
        """Remove the operator at this index."""
        del self.ops[index]
        self.program.changed()

    def _remove_var(self, name: str) -> None:
        """Remove a variable."""
        del self.vars[name]
        self.program.changed()

    def hold_ops(self, ops: Iterable[Operator]) -> None:
        """Replace the operators."""
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
                f"not in this program, which contains {known or 'no variables'}",
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


def _check_redeclared(
    old: Variable,
    shape: Sequence[int | None] | None,
    dtype: Any,
    lod_level: int | None,
    settings: Mapping[str, Any],
) -> None:
    """Raise ProgramError if a variable is declared again with different properties."""
    given = tuple(-1 if size is None else size for size in shape or ())
    pairs = {
        "shape": (old.shape, given or old.shape),
        "dtype": (old.dtype, old.dtype if dtype is None else dtype_name(dtype)),
        "lod_level": (old.lod_level, old.lod_level if lod_level is None else lod_level),
        "persistable": (old.persistable, settings.get("persistable", old.persistable)),
    }
    for what, (before, after) in pairs.items():
        if before != after and not (what == "shape" and not before):
            raise ProgramError.at(
                call_site(),
                f"variable '{old.name}'",
                f"exists with {what} {before}, but is now declared with {after}; use a different "
                "name",
            )
