"""The role of a program that several ranks train together."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.distributed.program_role import ProgramRole, active_role, active_roles
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope

if TYPE_CHECKING:
    from sparsefleet.collective import World
    from sparsefleet.collective.reduction import Traffic
    from sparsefleet.engine.step import Step

__all__ = ["CollectiveRole", "collective_role", "is_exchanged", "part_unless_training"]


class CollectiveRole(ProgramRole):
    """The role of a program whose operators communicate with the other ranks.

    The first run copies the first rank's values to all ranks.
    """

    holds_values = False

    def __init__(self, ranks: Ranks, program: Program) -> None:
        self.ranks = ranks
        self.program = program
        self._scope: Scope | None = None
        self._steps = 0
        """Number of steps since all ranks last had the same values."""

    def __str__(self) -> str:
        return f"a program of rank {self.ranks.rank} of {self.ranks.size}"

    @property
    def world(self) -> World:
        return self.ranks.world

    @property
    @abstractmethod
    def traffic(self) -> Traffic:
        """Return how much data this rank has sent so far while training this program."""

    def of_copy(self, program: Program) -> ProgramRole | None:
        return self if is_exchanged(program) else None

    # -- lifecycle ------------------------------------------------------------------------------

    def begin_pass(self, program: Program, threads: int) -> bool:
        if threads > 1:
            raise ConfigError(
                f"rank {self.ranks.rank} got {threads} threads, but a rank in a collective job "
                "runs one; start more ranks instead"
            )
        return is_exchanged(program)

    def get_ready(self, scope: Scope) -> None:
        if self._scope is None:
            self._scope = scope
            self._broadcast(self._kept_names(of_forward=True), 0)
            self._begin(scope)
            self.ranks.add_training(self)
        self._scope = scope

    @contextmanager
    def running(self, scope: Scope, step: Step | None = None) -> Iterator[None]:
        with super().running(scope, step):
            self.ranks.expect_end()
            self._start_run()
            try:
                yield
            except Exception:
                self._give_up()
                raise

    def end_data(self, scope: Scope) -> None:
        self.get_ready(scope)  # a rank without data also starts
        self.leave()

    def leave(self) -> None:
        self.ranks.part()

    def close(self) -> None:
        if self._scope is not None:
            self.ranks.end()

    @abstractmethod
    def _begin(self, scope: Scope) -> None:
        """Prepare the first run; must be called on all ranks."""

    @abstractmethod
    def _start_run(self) -> None:
        """Prepare a run of the program."""

    @abstractmethod
    def _give_up(self) -> None:
        """Handle a failed run, so that other ranks do not wait for this rank's step."""

    @abstractmethod
    def shadow(self) -> None:
        """Take part, without data, in the other ranks' remaining steps."""

    def make_equal(self) -> None:
        """Copy the values of the rank with the most steps to the other ranks."""
        counts = [
            struct.unpack("<q", part)[0]
            for part in self.world.all_gather_bytes(struct.pack("<q", self._steps))
        ]
        self._steps = 0
        if len(set(counts)) > 1:
            self._broadcast(self._kept_names(of_forward=False), counts.index(max(counts)))

    # -- values ---------------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        """Return the value of variable `name` in the scope, or None if it has none."""
        held = None if self._scope is None else self._scope.find_var(name)
        return None if held is None else held.value()

    def _kept_names(self, *, of_forward: bool) -> list[str]:
        """Return the persistent variables that the program reads.

        Unless `of_forward` is True, variables that the forward pass changes, such as running means
        and metric counts, are left out, because each rank keeps its own values.
        """
        block = self.program.global_block()
        named: set[str] = set()
        changed: set[str] = set()
        for op in block.ops:
            named.update(op.input_arg_names)
            if op.role == "forward":
                changed.update(op.output_arg_names)
        kept = [name for name, found in block.vars.items() if found.persistable and name in named]
        return [name for name in kept if of_forward or name not in changed]

    def _broadcast(self, names: Sequence[str], root: int) -> None:
        from sparsefleet.fluid.collective.tensor_exchange import broadcast_table

        values = {name: self.value(name) for name in names}
        dense = [value for value in values.values() if isinstance(value, torch.Tensor)]
        self.world.broadcast(dense, root)
        for name, value in values.items():
            if value is not None and not isinstance(value, torch.Tensor):
                assert self._scope is not None
                held = self._scope.find_var(name)
                assert held is not None
                held.hold(broadcast_table(self.world, value, root))


def collective_role(what: str) -> Any:
    """Return the role of the program that this thread runs, for the operator `what`."""
    role = active_role(what)
    if not isinstance(role, CollectiveRole):
        raise ConfigError(
            f"operator '{what}' needs a program in a collective job, but this is {role}"
        )
    return role


def part_unless_training(ranks: Ranks) -> None:
    """Prepare the ranks for a joint operation outside a training run; see `Ranks.part`."""
    if not any(isinstance(role, CollectiveRole) for role in active_roles()):
        ranks.part()


def is_exchanged(program: Program) -> bool:
    """Return whether the program contains operators that exchange data with the other ranks."""
    kinds = ("average_over_ranks", "mean_over_ranks")
    return any(op.type in kinds for op in program.global_block().ops)
