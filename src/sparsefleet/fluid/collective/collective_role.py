"""The role of a program that several ranks train together, and what the ranks exchange.

In shapes, R is the number of ranks, N the number of rows per rank or of keys, D the row width.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from sparsefleet import _core
from sparsefleet.collective import World
from sparsefleet.collective.reduction import Traffic, gather_rows
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.distributed.program_role import ProgramRole, active_role, active_roles
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.framework.sparse_parameter import LocalRows, SparseParameter
from sparsefleet.nn.step_rows import sum_by_key
from sparsefleet.store import Rows, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.row_streams import import_chunks

if TYPE_CHECKING:
    from sparsefleet.engine.step import Step

__all__ = [
    "CollectiveRole",
    "RowGradient",
    "all_gathered",
    "all_reduced",
    "broadcast_table",
    "broadcast_values",
    "collective_role",
    "is_exchanged",
    "mean_rows",
    "part_unless_training",
    "reduce_scattered",
]


Tensor = torch.Tensor

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def all_reduced(ranks: Ranks, x: Tensor, kind: str) -> Tensor:
    """Reduce by "sum", "prod", "max" or "min" over all ranks. Only the sum is differentiable."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    if kind == "sum":
        return _apply(_Sum, ranks, x)
    return _reduce(ranks, x, kind)


def all_gathered(ranks: Ranks, x: Tensor) -> Tensor:
    """Gather the rows of all ranks: [N, ...] on each rank -> [R * N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Gather, ranks, x)


def reduce_scattered(ranks: Ranks, x: Tensor) -> Tensor:
    """Return this rank's part of the sum over all ranks: [R * N, ...] -> [N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Scatter, ranks, x)


def broadcast_values(
    ranks: Ranks, values: Sequence[Tensor | SparseParameter], root: int
) -> list[Tensor | SparseParameter]:
    """Return the values of rank `root`, as new tensors."""
    if ranks.size == 1:
        return list(values)
    part_unless_training(ranks)
    made = [
        value.detach().clone()
        if isinstance(value, Tensor)
        else broadcast_table(ranks.world, value, root)
        for value in values
    ]
    ranks.world.broadcast([value for value in made if isinstance(value, Tensor)], root)
    return made


def _apply(kind: type[torch.autograd.Function], ranks: Ranks, x: Tensor) -> Tensor:
    made: Tensor = kind.apply(x, ranks)  # type: ignore[no-untyped-call]
    return made


class _Sum(torch.autograd.Function):
    """Sums over ranks. In the backward pass, each rank gets the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _reduce(ranks, x, "sum")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduce(ctx.ranks, gradient, "sum"), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _gather(ranks, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_part(ctx.ranks, _reduce(ctx.ranks, gradient, "sum")), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _own_part(ranks, _reduce(ranks, x, "sum"))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(ctx.ranks, gradient), None


def _reduce(ranks: Ranks, x: Tensor, kind: str) -> Tensor:
    total = x.detach().clone(memory_format=torch.contiguous_format)
    with ranks.world.naming_lost(f"c_allreduce_{kind}"):
        dist.all_reduce(total, _OPERATIONS[kind], group=ranks.world.group)
    return total


def _gather(ranks: Ranks, x: Tensor) -> Tensor:
    mine = x.detach().contiguous()
    with ranks.world.naming_lost("c_allgather"):
        parts = [torch.empty_like(mine) for _ in range(ranks.size)]
        dist.all_gather(parts, mine, group=ranks.world.group)
    return torch.cat(parts)


def _own_part(ranks: Ranks, x: Tensor) -> Tensor:
    if len(x) % ranks.size:
        raise ValueError(f"{len(x)} rows cannot be divided evenly among {ranks.size} ranks")
    return x.chunk(ranks.size)[ranks.rank].clone()


RowGradient = tuple[Keys, Floats]
"""Distinct keys, uint64[N], and their gradients, float32[N, D]."""


def mean_rows(
    world: World, own: RowGradient | None, dim: int, count: int, traffic: Traffic
) -> RowGradient | None:
    """Return the distinct keys of all ranks, each with the sum of its gradients divided by `count`.

    Must be called by all ranks; a rank without data passes None. Returns None if no rank has
    data.
    """
    keys, values = own or (np.empty(0, np.uint64), np.empty((0, dim), np.float32))
    all_keys, all_values = gather_rows(
        world,
        torch.from_numpy(keys.view(np.int64)),
        torch.from_numpy(np.asarray(values)),
        traffic=traffic,
    )
    if not len(all_keys):
        return None
    distinct, inverse = _core.unique(all_keys.numpy().view(np.uint64))
    distinct, sums = sum_by_key(distinct, inverse, all_values.numpy())
    sums /= np.float32(count)
    return distinct, sums


def broadcast_table(world: World, table: SparseParameter, root: int) -> SparseParameter:
    """Return a copy of rank `root`'s table. New rows in both tables get the same initial values."""
    mine = table.rows()
    spec = table.store.specs[table.name]
    assert isinstance(spec, TableSpec)
    shape = torch.tensor(
        [len(mine.keys), mine.state.shape[1], mine.counters.shape[1], _signed(spec.seed)],
        device="cpu",
    )
    world.broadcast([shape], root)
    count, states, counters, seed = shape.tolist()
    if world.rank == root:
        rows = mine
    else:
        rows = Rows(
            np.empty(count, np.uint64),
            np.empty((count, table.dim), np.float32),
            np.empty((count, states), np.float32),
            np.empty((count, counters), np.uint32),
        )
    world.broadcast([torch.from_numpy(column.view(np.uint8)) for column in _columns(rows)], root)
    if world.rank == root:
        return table
    made = LocalRows(
        table.name, (table.height, table.dim), spec.initializer, table.optimizer, seed % 2**64
    )
    import_chunks(made.store, made.name, [rows])
    return made


def _columns(rows: Rows) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return [np.ascontiguousarray(column).reshape(-1) for column in rows if column.size]


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


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
        from sparsefleet.fluid.collective.collective_role import broadcast_table

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
