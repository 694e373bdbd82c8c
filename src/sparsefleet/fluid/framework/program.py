"""Programs, which describe a network as operators on named variables, and their JSON."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.call_site import CallSite, ProgramError, call_site
from sparsefleet.fluid.framework.operator import (
    Operator,
    OpRole,
    Role,
    number_of_role,
    role_of_number,
)
from sparsefleet.fluid.framework.param_attr import regularizer_from_json
from sparsefleet.fluid.framework.program_desc import program_of_desc
from sparsefleet.fluid.framework.variable import TENSOR, Parameter, Variable

if TYPE_CHECKING:
    from sparsefleet.fluid.distributed import ProgramRole

__all__ = ["Program", "block_from_json", "block_to_json"]


class Program:
    """A network description that an Executor runs; layers add to it under `program_guard`.

    random_seed: seed of initializers and dropout; 0 draws a new seed each time.

    >>> from sparsefleet import fluid
    >>> main = Program()
    >>> with fluid.program_guard(main, Program()):
    ...     square = fluid.layers.square(fluid.data("x", [None, 2]))
    >>> main.global_block().ops
    [{Out=['square_0.tmp_0']} = square(inputs={X=['x']})]
    """

    is_eager = False
    """Whether operators compute as they are added, as in `fluid.dygraph`."""

    _seed_of_new = 0

    def __init__(self) -> None:
        self._random_seed = Program._seed_of_new
        self.blocks = [Block(self, 0)]
        self.current_block_idx = 0
        self.role: Role = "forward"
        self._loaders: list[weakref.ref[Any]] = []
        self._distributed: ProgramRole | None = None  # its role in a job
        self._exchange_settings: dict[str, object] = {}  # from a BuildStrategy, set by a transpiler
        self.fused_with_activation: frozenset[str] = frozenset()
        """Types of operators that are fused with the activation that follows them."""
        self.version = 0
        """Increases with each change, so that results derived from the program can be cached."""

    @property
    def random_seed(self) -> int:
        """Return the seed."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if not isinstance(seed, int):
            raise ValueError(f"Program.random_seed must be an int, got {seed!r}")
        self._random_seed = seed

    def global_seed(self, seed: int = 0) -> None:
        """Set the seed of this program and of all programs created later."""
        self.random_seed = seed
        Program._seed_of_new = seed

    def changed(self) -> None:
        """Record that the program has changed. Must be called after each change."""
        self.version += 1

    def add_loader(self, loader: Any) -> None:
        """Make a non-iterable loader feed all later runs, for as long as the loader is referenced
        elsewhere.
        """
        self._loaders.append(weakref.ref(loader))

    def remove_loaders(self) -> None:
        """Detach all loaders from later runs."""
        self._loaders.clear()

    @property
    def loaders(self) -> list[Any]:
        """Return the loaders that feed the runs."""
        return [loader for known in self._loaders if (loader := known()) is not None]

    # -- blocks and variables -----------------------------------------------------------------

    def global_block(self) -> Block:
        return self.blocks[0]

    def current_block(self) -> Block:
        """Return the block that layers add to."""
        return self.blocks[self.current_block_idx]

    @contextmanager
    def new_block(self) -> Iterator[Block]:
        """Create a block inside the current block; layers in the `with` block are added to it."""
        made = Block(self, len(self.blocks), self.current_block_idx)
        self.blocks.append(made)
        old, self.current_block_idx = self.current_block_idx, made.idx
        try:
            yield made
        finally:
            self.current_block_idx = old

    @contextmanager
    def block_guard(self, block: Block) -> Iterator[None]:
        """Make layers in the `with` block add to this block."""
        old, self.current_block_idx = self.current_block_idx, block.idx
        try:
            yield
        finally:
            self.current_block_idx = old

    def block(self, index: int) -> Block:
        return self.blocks[index]

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def list_vars(self) -> Iterator[Variable]:
        """Yield all variables."""
        for block in self.blocks:
            yield from block.vars.values()

    def all_parameters(self) -> list[Parameter]:
        return self.global_block().all_parameters()

    @contextmanager
    def role_guard(self, role: Role) -> Iterator[None]:
        """Mark operators added in the `with` block as part of the backward pass, update or
        schedule.
        """
        old, self.role = self.role, role
        try:
            yield
        finally:
            self.role = old

    @contextmanager
    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Iterator[None]:
        del is_with_opt
        with self.role_guard("schedule"):
            yield

    @contextmanager
    def _optimized_guard(self, param_and_grads: Sequence[Variable | str]) -> Iterator[None]:
        del param_and_grads
        with self.role_guard("optimize"):
            yield

    @contextmanager
    def _backward_role_guard(self) -> Iterator[None]:
        with self.role_guard("backward"):
            yield

    @property
    def _current_role(self) -> OpRole:
        """The role of operators added now, as Fluid counts roles; scripts also set it."""
        return number_of_role(self.role)

    @_current_role.setter
    def _current_role(self, number: int) -> None:
        self.role = role_of_number(number)

    # -- copies -------------------------------------------------------------------------------

    def clone(self, for_test: bool = False) -> Program:
        """Return a copy; with for_test, omit the backward pass, the update and dropout."""
        block = self.global_block()
        if not for_test:
            return self._copy_with(block.ops, list(block.vars.values()))
        ops = [op for op in block.ops if op.role == "forward"]
        made = self._copy_with(ops, self._named_by(ops, keep_data=True))
        for copied in made.blocks:
            for op in copied.ops:
                op.attrs["is_test"] = True
        return made

    def prune(self, targets: Sequence[Variable | str], feeds: Sequence[str] = ()) -> Program:
        """Return a copy with only the operators needed to compute the targets from the feeds."""
        names = [target if isinstance(target, str) else target.name for target in targets]
        wanted = set(names)
        kept: list[Operator] = []
        for op in reversed(self.global_block().ops):
            if op.role == "forward" and wanted.intersection(op.output_arg_names) - set(feeds):
                kept.append(op)
                wanted.update(op.input_arg_names)
        made = {name for op in kept for name in op.output_arg_names}
        for name in names:
            if name not in made and name not in feeds:
                raise ProgramError.at(
                    call_site(), f"target '{name}'", "no operator in the program computes it"
                )
        kept.reverse()
        variables = self._named_by(kept)
        variables += [self.global_block().var(name) for name in (*feeds, *names)]
        return self._copy_with(kept, variables)

    def _prune(self, targets: Any) -> Program:
        """Fluid's name for `prune` with targets only."""
        return self._prune_with_input([], targets)

    def _prune_with_input(self, feeded_var_names: Any, targets: Any) -> Program:
        """Call `prune`, under Fluid's name."""
        items = targets if isinstance(targets, (list, tuple)) else [targets]
        feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else feeded_var_names
        if any(not isinstance(name, str) for name in feeds):
            raise ValueError(f"feeded_var_names must be names, got {feeds!r}")
        if any(not isinstance(item, (Variable, Operator)) for item in items):
            raise ValueError(
                "All targets of Program._prune_with_input() can only be Variable or Operator, "
                f"got {items!r}"
            )
        names = [
            name
            for item in items
            for name in ([item.name] if isinstance(item, Variable) else item.output_arg_names)
        ]
        here = [name for name in feeds if self.global_block().has_var(name)]
        return self.prune(names, here)

    def _named_by(self, ops: Sequence[Operator], *, keep_data: bool = False) -> list[Variable]:
        names = {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}
        return [
            found
            for found in self.global_block().vars.values()
            if found.name in names or (keep_data and found.is_data)
        ]

    def _copy_with(self, ops: Sequence[Operator], variables: Sequence[Variable]) -> Program:
        made = Program()
        made.random_seed = self.random_seed
        made.fused_with_activation = self.fused_with_activation
        made._loaders = list(self._loaders)
        for variable in variables:
            if not made.global_block().has_var(variable.name):
                made.global_block().add_var(variable.copy())
        made.global_block().hold_ops(op.copy() for op in ops)
        made._copy_inner_blocks(self)
        if self._distributed is not None:
            made._distributed = self._distributed.of_copy(made)
        made.changed()
        return made

    def _copy_inner_blocks(self, other: Program) -> None:
        """Copy the other program's inner blocks to the same indices; leave unused blocks empty."""
        named = {op.attrs["sub_block"] for op in self.global_block().ops if op.has_sub_block}
        for old in other.blocks[1:]:
            made = Block(self, old.idx, old.parent_idx)
            self.blocks.append(made)
            if old.idx in named:
                for variable in old.vars.values():
                    made.add_var(variable.copy())
                made.hold_ops(op.copy() for op in old.ops)
                named.update(op.attrs["sub_block"] for op in made.ops if op.has_sub_block)

    def site_of_use(self, name: str) -> CallSite | None:
        """Return the user's line for the first operator that reads a variable."""
        uses = (op.site for op in self.global_block().ops if name in op.input_arg_names)
        return next(uses, None)

    # -- text ---------------------------------------------------------------------------------

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return human-readable text; with_details adds the attributes of variables."""
        del throw_on_error
        text = "\n".join(map(str, self.blocks))
        if not with_details:
            return text
        details = (
            f"{one.name}: persistable={one.persistable}, stop_gradient={one.stop_gradient}"
            for one in self.list_vars()
        )
        return "\n".join([text, *details])

    __str__ = to_string

    def to_json(self) -> str:
        """Return the whole program as text that `from_json` can parse."""
        document = {
            "format": "sparsefleet.program",
            "format_version": 1,
            "random_seed": self.random_seed,
            "blocks": [block_to_json(block) for block in self.blocks],
        }
        return json.dumps(document, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Parse text written by `to_json`; raise ProgramError for any other text."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProgramError(f"not a program: {error}") from error
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Program:
        """Return the program that a parsed JSON document describes; raise ProgramError if it is
        invalid."""
        if not isinstance(document, dict) or document.get("format") != "sparsefleet.program":
            raise ProgramError(
                "not a program: expected a JSON object with format 'sparsefleet.program'"
            )
        if document.get("format_version") != 1:
            raise ProgramError(
                f"the program has format version {document.get('format_version')!r}, expected 1; "
                "it was written by a newer version of sparsefleet"
            )
        made = cls()
        try:
            made.random_seed = int(document["random_seed"])
            for number, item in enumerate(document["blocks"]):
                if number > 0:
                    made.blocks.append(Block(made, number, int(item["parent"])))
                block_from_json(made.blocks[number], item)
        except ProgramError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise ProgramError(
                f"the program is corrupt ({type(error).__name__}: {error})"
            ) from error
        return made

    @property
    def desc(self) -> Program:
        """Return this program, which, unlike in Fluid, is its own description."""
        return self

    def serialize_to_string(self) -> bytes:
        """Return `to_json` as bytes."""
        return self.to_json().encode()

    @classmethod
    def parse_from_string(cls, binary_str: bytes | str) -> Program:
        """Parse bytes written by `serialize_to_string`, in sparsefleet or in PaddlePaddle 1.x."""
        if isinstance(binary_str, str):
            return cls.from_json(binary_str)
        if binary_str.lstrip()[:1] == b"{":
            return cls.from_json(binary_str.decode())
        return cls.from_document(program_of_desc(binary_str).document)


Json = dict[str, Any]

_VARIABLE_FIELDS = ("lod_level", "stop_gradient", "persistable", "is_data", "need_check_feed")


def block_to_json(block: Block) -> Json:
    return {
        "parent": block.parent_idx,
        "vars": [_variable_to_json(variable) for variable in block.vars.values()],
        "ops": [_operator_to_json(op) for op in block.ops],
    }


def block_from_json(block: Block, document: Json) -> None:
    """Add the contents of the document to an empty block."""
    try:
        for item in document["vars"]:
            block.add_var(_variable_from_json(item))
        block.hold_ops(_operator_from_json(item) for item in document["ops"])
    except (KeyError, TypeError) as error:
        raise ProgramError(f"not a program: {error!r}") from error
    block.program.changed()


def _variable_to_json(variable: Variable) -> Json:
    document: Json = {
        "name": variable.name,
        "shape": list(variable.shape),
        "dtype": variable.dtype,
        **{field: getattr(variable, field) for field in _VARIABLE_FIELDS},
    }
    if variable.type != TENSOR:
        document["type"] = variable.type
    if isinstance(variable, Parameter):
        document["parameter"] = {
            "trainable": variable.trainable,
            "learning_rate": variable.optimize_attr["learning_rate"],
            "regularizer": variable.regularizer and variable.regularizer.to_json(),
            "is_table": variable.is_table,
            "table_optimizer": variable.table_optimizer,
        }
    return document


def _variable_from_json(document: Json) -> Variable:
    name, shape, dtype = document["name"], document["shape"], document["dtype"]
    extra = document.get("parameter")
    if extra is None:
        settings = {key: document[key] for key in _VARIABLE_FIELDS}
        return Variable(name, shape, dtype, type=document.get("type", TENSOR), **settings)
    made = Parameter(
        name,
        shape,
        dtype,
        trainable=extra["trainable"],
        learning_rate=extra["learning_rate"],
        regularizer=extra["regularizer"] and regularizer_from_json(extra["regularizer"]),
        is_table=extra["is_table"],
    )
    made.stop_gradient = document["stop_gradient"]
    made.table_optimizer = extra["table_optimizer"]
    return made


def _operator_to_json(op: Operator) -> Json:
    return {
        "type": op.type,
        "inputs": op.inputs,
        "outputs": op.outputs,
        "attrs": op.attrs,
        "role": op.role,
        "site": op.site and list(op.site),
    }


def _operator_from_json(document: Json) -> Operator:
    site = document["site"]
    return Operator(
        document["type"],
        document["inputs"],
        document["outputs"],
        document["attrs"],
        role=document["role"],
        site=site and CallSite(*site),
    )
