"""The settings of a mode, and the gradients that each step hands over to it.

In shapes, N is the number of keys, D the row width, and S the number of elements of a dense table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive
from sparsefleet.optim import Optimizer
from sparsefleet.store import Store, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.rows import DataMark

if TYPE_CHECKING:
    from torch import Tensor

    from sparsefleet.collective import World
    from sparsefleet.collective.sync_batch_norm import NormGroup


_MAX_MEMBERS = 2**31 - 1
DenseParts = Sequence[Floats]
"""Flat float32 arrays that form the gradient float32[S] when concatenated."""


@runtime_checkable
class Schedule(Protocol):
    """Learning rates that change during training; each mode defines what a step is."""

    def rates_at(self, step: int) -> Mapping[str, float]:
        """Return the learning rate of each table, sparse or dense, after ``step`` steps."""
        ...


GRADIENTS, ROUNDS, ROWS = 0, 1, 2
"""Kinds of data marks: gradients of mini-batches, numbers of rounds and, if rows are sent
separately, the mini-batches of the rows.
"""

SOURCES = 8
"""The stream of a mark is ``kind + SOURCES * source``. Source 0 is the mini-batches of a pass; each
file whose records identify mini-batches is a further source.
"""


class Interval(NamedTuple):
    """The records [begin, end) of a file; the file is given by its number."""

    file: int
    begin: int
    end: int


class BatchOrigin(NamedTuple):
    """The mini-batch that gradients come from, for servers that record what they have applied."""

    epoch: int
    """The pass over the data; later passes have larger numbers."""

    number: int
    """Position in the pass, counted from 1."""

    applied: frozenset[int] = frozenset()
    """The kinds (`ROWS` and so on) in which all servers have applied the mini-batch."""

    partial: frozenset[int] = frozenset()
    """The kinds in which only some servers have applied the mini-batch, for a process that replaces
    another.
    """

    records: tuple[Interval, ...] = ()
    """The records in the mini-batch, if they identify it instead of its position."""

    base: int = 0
    """Offset added to the streams of its marks if the mini-batch is from a lost worker's data."""

    def marks(self, kind: int = GRADIENTS) -> list[DataMark]:
        """Return the `DataMark`s to send to the servers with the push of this mini-batch."""
        if not self.records:
            return [(self.base + kind, self.epoch, self.number - 1, self.number)]
        return [
            (self.base + kind + SOURCES * (1 + file), self.epoch, begin, end)
            for file, begin, end in self.records
        ]


@dataclass(slots=True)
class StepGradients:
    """The gradients of one mini-batch."""

    sparse: dict[str, tuple[Keys, Floats]] = field(default_factory=dict)
    """The distinct keys uint64[N] and gradients float32[N, D] of each table."""

    dense: dict[str, Floats] = field(default_factory=dict)
    """The gradient float32[S] of each dense table."""

    dense_parts: dict[str, list[Floats]] = field(default_factory=dict)
    """Each dense table's gradient in flat parts; replaces ``dense`` if ``Mode.takes_parts``."""

    wanted: dict[str, Keys] = field(default_factory=dict)
    """The keys uint64[N] in each table that the thread's next mini-batch looks up."""

    brought: dict[str, Floats] = field(default_factory=dict)
    """The rows float32[N, D] of ``wanted``, by table; set by modes with ``brings_rows``."""

    origin: BatchOrigin | None = None
    """The mini-batch that the gradients come from; None if it is not tracked."""

    def clip(self, max_norm: float) -> float:
        """Scale all gradients in place to a norm of at most `max_norm`; return their old norm.

        As in `torch.nn.utils.clip_grad_norm_`, the norm is computed over all gradients, for rows
        and dense parameters, as one vector.
        """
        parts = [values for _, values in self.sparse.values()]
        parts += self.dense.values()
        parts += [part for table in self.dense_parts.values() for part in table]
        norm = math.sqrt(sum(float(np.vdot(part, part)) for part in parts))
        if norm > max_norm:
            scale = np.float32(max_norm / (norm + 1e-6))  # as torch
            for part in parts:
                np.multiply(part, scale, out=part)
        return norm

    def all_dense(self) -> dict[str, Floats | list[Floats]]:
        """Return each dense table's gradient, whole or in parts, as accepted by a push."""
        return {**self.dense, **self.dense_parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSetting:
    """Additional settings for mode "collective": the ranks, and the parameters they update."""

    world: World
    """The workers, connected to each other."""

    parameters: Mapping[str, Tensor]
    """The dense parameters by name; gradients are read from, and left in, their ``grad``."""

    step: Callable[[], None]
    """Updates the parameters with those gradients."""

    norm_group: NormGroup | None = None
    """The group of the model's batch norms, if they are synchronized."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModePosition:
    """The position of a mode when its process exited, for the process that replaces it."""

    state: Mapping[str, int]
    """The result of `Mode.state` at that time."""

    batches: int = 0
    """Number of this worker's mini-batches that all servers have applied since."""

    next_round: int | None = None
    """The first round that not all servers have applied, if any round was applied since."""

    has_partial_round: bool = False
    """Whether some servers have applied that round."""

    def count(self, name: str) -> int:
        """Return the number stored under `name` in the state."""
        return int(self.state.get(name, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeSetting:
    """The tables, threads and workers of a training run."""

    store: Store
    """The store of all tables below, which are already defined."""

    tables: Mapping[str, TableSpec]
    """Sparse tables by name."""

    dense: Mapping[str, Floats] = field(default_factory=dict)
    """The live parameters float32[S] of each dense table; fetched values are written in place."""

    dense_is_live: bool = False
    """Whether the arrays in ``dense`` are the store's own (``LocalStore.live_dense``), so nothing
    needs fetching.
    """

    dense_is_shared: bool = False
    """Whether all workers have just read the same values into ``dense``. They are then not fetched
    again at the start, when another worker may already have trained.
    """

    dense_optimizers: Mapping[str, Optimizer] = field(default_factory=dict)
    """The optimizer that the store applies to each dense table's gradient."""

    threads: int = 1
    """Number of training threads of this worker."""

    worker_index: int = 0
    """The index of this worker among all workers, from 0."""

    worker_num: int = 1
    """The number of workers that train together."""

    group: str = "train"
    """The name of this run on the servers, the same on all workers. Consecutive runs on the same
    servers may share it only if all workers finish the first before any starts the second.
    """

    schedule: Schedule | None = None
    """Learning rates by step; None keeps the tables' rates and counts nothing."""

    first_step: int = 0
    """The schedule's step at the start, from an earlier part of the same run."""

    continue_without_lost: bool = False
    """Whether a lost worker is treated as finished; if False, losing a worker stops training."""

    wait_s: float = 600.0
    """Maximum wait for other threads, other workers or room in a queue."""

    dense_step: Callable[[dict[str, Floats]], None] | None = None
    """Only for mode "local": applies dense gradients to the live parameters instead of the store.
    """

    ranks: RankSetting | None = None
    """Settings for mode "collective", which has no dense tables; None in other modes."""

    position: ModePosition | None = None
    """Where to continue when replacing a process that exited; None means the beginning."""

    outbox: str | None = None
    """A file that outlives this process, for modes with rounds; None if the process is never
    replaced.
    """

    def __post_init__(self) -> None:
        require_int(self, "threads", 1, _MAX_MEMBERS)
        require_int(self, "worker_num", 1, _MAX_MEMBERS)
        require_int(self, "worker_index", 0, self.worker_num - 1)
        require_int(self, "first_step", 0, 2**62)
        require_bool(self, "continue_without_lost")
        require_positive(self, "wait_s")
        require(bool(self.group), self, "group", "some text")
        for name, live in self.dense.items():
            if live.dtype != np.float32 or live.ndim != 1:
                raise ConfigError(
                    f"ModeSetting.dense['{name}'] must be float32[size], "
                    f"got {live.dtype} of shape {live.shape}"
                )
            if not (live.flags.writeable and live.flags.c_contiguous):
                raise ConfigError(
                    f"ModeSetting.dense['{name}'] must be writable and contiguous, because it is a "
                    "view of the live parameters"
                )
            if self.dense_step is None and name not in self.dense_optimizers:
                raise ConfigError(
                    f"ModeSetting.dense_optimizers has no optimizer for dense table '{name}', "
                    f"only for: {', '.join(self.dense_optimizers) or 'none'}"
                )

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizer of each table, sparse or dense."""
        sparse = {name: spec.optimizer for name, spec in self.tables.items()}
        return {**sparse, **self.dense_optimizers}


def join(parts: DenseParts) -> Floats:
    """Concatenate the parts of a gradient into a new array.

    >>> join([np.array([1, 2], np.float32), np.array([3], np.float32)])
    array([1., 2., 3.], dtype=float32)
    """
    whole = np.empty(sum(part.size for part in parts), np.float32)
    _core.join_parts(parts, whole)
    return whole
