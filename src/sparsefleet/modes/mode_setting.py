"""What every mode is told when it is made, and what a step hands to it.

Letters: N keys, D row width, S elements of a dense table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive
from sparsefleet.optim import Optimizer
from sparsefleet.store import Store, TableSpec
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from torch import Tensor

    from sparsefleet.collective import NormGroup, World

_MAX_MEMBERS = 2**31 - 1


@runtime_checkable
class Schedule(Protocol):
    """Learning rates that change while training; what a step is, depends on the mode."""

    def rates_at(self, step: int) -> Mapping[str, float]:
        """Table, sparse or dense, to the learning rate of the update after ``step`` steps."""
        ...


@dataclass(slots=True)
class StepGradients:
    """The gradients of one mini-batch."""

    sparse: dict[str, tuple[Keys, Floats]] = field(default_factory=dict)
    """Table to keys uint64[N], each once, and gradients float32[N, D]."""

    dense: dict[str, Floats] = field(default_factory=dict)
    """Dense table to gradient float32[S]."""

    dense_parts: dict[str, list[Floats]] = field(default_factory=dict)
    """Dense table to its gradient in flat parts, in place of ``dense`` where the mode
    ``takes_parts``."""

    wanted: dict[str, Keys] = field(default_factory=dict)
    """Table to keys uint64[N], those that the thread's next mini-batch looks up."""

    brought: dict[str, Floats] = field(default_factory=dict)
    """Table to the rows of ``wanted``, float32[N, D], once a mode that ``brings_rows`` has been
    handed all this."""

    def all_dense(self) -> dict[str, Floats | list[Floats]]:
        """Dense table to gradient, whole or in parts, as a push takes it."""
        return {**self.dense, **self.dense_parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSetting:
    """What mode "collective" is told besides: the ranks, and what each of them steps itself."""

    world: World
    """The workers, connected to each other."""

    parameters: Mapping[str, Tensor]
    """The dense parameters by name; gradients are taken from, and left in, their ``grad``."""

    step: Callable[[], None]
    """Steps them with those gradients."""

    norm_group: NormGroup | None = None
    """Of the batch norms of the model, where they are synchronised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeSetting:
    """The tables, the threads and the workers that a mode brings together."""

    store: Store
    """Holds all tables below, already defined."""

    tables: Mapping[str, TableSpec]
    """Sparse tables by name."""

    dense: Mapping[str, Floats] = field(default_factory=dict)
    """Dense table to the live parameters float32[S]; fetched values are written in place."""

    dense_is_live: bool = False
    """Whether the arrays of ``dense`` are the store's own (``LocalStore.live_dense``): there is
    nothing to fetch then."""

    dense_optimizers: Mapping[str, Optimizer] = field(default_factory=dict)
    """Dense table to what the store does with its gradient."""

    threads: int = 1
    """Training threads of this worker."""

    worker_index: int = 0
    """This worker among all, from 0."""

    worker_num: int = 1
    """Workers that train together."""

    group: str = "train"
    """What this training is called on the servers; the same on all workers. Two trainings that
    follow each other on the same servers may share it only if all workers end the first before
    any begins the second."""

    schedule: Schedule | None = None
    """Learning rates by step; None leaves those of the tables alone, without any counting."""

    first_step: int = 0
    """Where the schedule is at the start: the steps of an earlier part of the same training."""

    go_on_without_lost: bool = False
    """Whether a worker whose connection is lost counts as done, instead of ending the training."""

    wait_s: float = 600.0
    """Longest wait for other threads, workers or a full queue."""

    dense_step: Callable[[dict[str, Floats]], None] | None = None
    """Mode "local" only: applies dense gradients to the live parameters, in place of the store."""

    ranks: RankSetting | None = None
    """Mode "collective" only: then there are no dense tables."""

    def __post_init__(self) -> None:
        require_int(self, "threads", 1, _MAX_MEMBERS)
        require_int(self, "worker_num", 1, _MAX_MEMBERS)
        require_int(self, "worker_index", 0, self.worker_num - 1)
        require_int(self, "first_step", 0, 2**62)
        require_bool(self, "go_on_without_lost")
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
                    f"ModeSetting.dense['{name}'] must be writable and contiguous: "
                    "it is a view of the live parameters"
                )
            if self.dense_step is None and name not in self.dense_optimizers:
                raise ConfigError(
                    f"ModeSetting.dense_optimizers has no optimizer of dense table '{name}', "
                    f"only of: {', '.join(self.dense_optimizers) or 'none'}"
                )

    def optimizers(self) -> dict[str, Optimizer]:
        """Table, sparse or dense, to its optimizer."""
        sparse = {name: spec.optimizer for name, spec in self.tables.items()}
        return {**sparse, **self.dense_optimizers}
