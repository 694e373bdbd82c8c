"""Collective mode: each worker updates dense parameters with the mean gradient of all workers.

In shapes, N is the number of keys and D the row width.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sparsefleet.collective import World
from sparsefleet.collective.reduction import Traffic, gather_rows
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.training import CollectiveTraining
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require
from sparsefleet.modes.async_mode import AsyncMode
from sparsefleet.modes.half_async import HalfAsyncMode
from sparsefleet.modes.hybrid import HybridConfig
from sparsefleet.modes.local import LocalMode
from sparsefleet.modes.mode import Mode, ModeStats
from sparsefleet.modes.mode_setting import ModeSetting, RankSetting, StepGradients
from sparsefleet.modes.rates import ScheduledRates
from sparsefleet.modes.sync import SyncMode
from sparsefleet.nn.step_rows import merge_gradients
from sparsefleet.store import AdmitAlways, LocalStore, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown

__all__ = ["CollectiveConfig", "CollectiveMode", "HybridCollectiveMode"]
RowGradients = dict[str, tuple[Keys, Floats]]
"""Maps each table to distinct keys uint64[N] and gradients float32[N, D]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveConfig:
    """Update dense parameters on every worker with the mean of all workers' gradients.

    >>> CollectiveConfig(strategy=CollectiveStrategy(num_rings=2)).rows is None
    True
    """

    strategy: CollectiveStrategy = field(default_factory=CollectiveStrategy)
    """How workers exchange gradients, and what else is part of a step."""

    rows: HybridConfig | None = None
    """How gradients for rows on servers are sent. If None, they are sent in the same step, as the
    mean over the workers. With a config, they are sent in the background, as in mode "hybrid".
    """

    def __post_init__(self) -> None:
        known = isinstance(self.strategy, CollectiveStrategy)
        require(known, self, "strategy", "a CollectiveStrategy")
        known = self.rows is None or isinstance(self.rows, HybridConfig)
        require(known, self, "rows", "a HybridConfig or None")


class CollectiveMode(Mode):
    """Exchanges gradients of dense parameters between workers, as configured by the strategy.

    Rows are updated in the same step. With servers, this takes a round of all workers; without
    servers, every worker holds all tables and updates them with the row gradients of all workers.
    With LocalSGD, rows are pushed to the servers without waiting, or averaged with the parameters.
    A schedule counts optimizer steps. Each worker has one training thread.
    """

    name: ClassVar[str] = "collective"
    keeps_dense: ClassVar[bool] = True
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "workers"

    def __init__(self, setting: ModeSetting, config: CollectiveConfig) -> None:
        super().__init__(setting)
        ranks = _require_ranks(setting)
        self._world = ranks.world
        self._step_dense = ranks.step
        self._is_averaging = config.strategy.gradient_merge_average
        self._is_local_sgd = config.strategy.local_sgd is not None
        self._rates = ScheduledRates.of(setting)
        self._rounds = 0
        self._batches = 0
        self._has_left = False
        self._rows_have_left = False
        self._pending: list[RowGradients] = []
        self._averaged: RowAveraging | None = None
        self.training = CollectiveTraining(
            ranks.parameters.items(),
            self._apply,
            ranks.world,
            config.strategy,
            norm_group=ranks.norm_group,
            at_meeting=self._average_rows,
        )
        """The part of a step that handles dense parameters."""
        self._config = config
        self._rows = self._make_rows()
        self._gathered: GatheredRows | None = None
        if setting.tables and isinstance(setting.store, LocalStore):
            self._gathered = GatheredRows(self._world, setting.tables, self.training.traffic)
            if self._is_local_sgd:
                self._averaged = RowAveraging(setting.store, self._gathered)

    # -- Called by training -------------------------------------------------------------------

    def start(self) -> None:
        """Set the schedule's first learning rates and join the other workers."""
        super().start()
        self._rows.start()

    def forward(self) -> AbstractContextManager[None]:
        return self.training.forward()

    def backward(self, loss: Tensor) -> None:
        self.training.backward(loss)

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        self._pending.append(gradients.sparse)
        num_pending = self.training.num_merged
        began = time.perf_counter()
        num_steps = self.training.num_steps
        self.training.step()
        if self.training.num_steps > num_steps:
            self._record.pushed(time.perf_counter() - began, num_pending)
            self._pending.clear()
        self._batches += 1
        self._record.stepped(0.0)

    def leave(self) -> None:
        """Keep taking part in the other workers' steps until no worker has data left.

        All workers then have the same parameters.
        """
        self._raise_failure()
        self._has_left = True
        self._follow()
        self._leave_rows()

    def rejoin(self) -> None:
        """Start the next pass once all workers are ready, and adopt the largest step count."""
        self._raise_failure()
        counts = self._world.all_gather_bytes(f"{self._rounds} {self._batches}".encode())
        self._rounds = max(int(each.split()[0]) for each in counts)
        self._batches = max(int(each.split()[1]) for each in counts)
        self._rows.rejoin()
        self._has_left = self._rows_have_left = False

    def pause(self) -> None:
        """Stop all workers after the same step, including workers that have run out of data."""
        self._raise_failure()
        if not self._has_left:  # a thread that has left was released by the pausing threads
            self._follow()
        self._rows.flush()

    def resume(self) -> None:
        """Resume; a worker without data takes part in the other workers' steps again."""
        if self._has_left:
            self._follow()

    def flush(self) -> None:
        self._raise_failure()
        self._rows.flush()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._rows.fail(error)

    @property
    def steps_of_schedule(self) -> int:
        return self._rounds

    @property
    def steps_taken(self) -> int:
        return self._batches

    def stats(self) -> ModeStats:
        """Return the counters so far, including the traffic between workers."""
        traffic = self.training.traffic
        return replace(super().stats(), sent_bytes=traffic.sent_bytes, collectives=traffic.calls)

    def state(self) -> dict[str, int]:
        return {"rounds": self._rounds, "batches": self._batches}

    def continue_from(self, state: Mapping[str, int]) -> None:
        """Continue counting from the `state()` of the process that this one replaces."""
        self._rounds, self._batches = state["rounds"], state["batches"]

    # -- Internal -----------------------------------------------------------------------------

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        found = super()._pull_rows(keys, train, unknown)
        if train and self._averaged is not None:
            self._averaged.pulled(keys, found)
        return found

    def _make_rows(self) -> Mode:
        """Return the mode that pushes row gradients to the store; it has no dense parameters."""
        setting = replace(self._setting, schedule=None, ranks=None)
        if isinstance(setting.store, LocalStore):
            _require_admitting(setting)
            return LocalMode(replace(setting, worker_index=0, worker_num=1))
        if not setting.tables or self._is_local_sgd:
            return HalfAsyncMode(setting)
        return SyncMode(setting)

    def _leave_rows(self) -> None:
        """Leave the row mode's pass, so no worker waits for this worker's rows. Idempotent."""
        if not self._rows_have_left:
            self._rows_have_left = True
            self._rows.leave()

    def _follow(self) -> None:
        """Take part in the others' steps until no worker has data left; apply merged gradients."""
        self.training.leave()
        self._pending.clear()

    def _apply(self) -> bool:
        """Make one update, the same on all workers; skip it and return False if rows overflow."""
        count = self.training.num_merged  # earlier row gradients belong to abandoned steps
        own = self._pending[-count:] if count else []
        rows, is_finite = self._mean_rows(own)
        if not is_finite:
            return False
        if self._rates is not None:
            self._rates.at(self._rounds)
        if self._gathered is not None or own:
            self._hand_over_rows(rows)
        elif self._has_left:
            self._leave_rows()
        self._step_dense()
        self._rounds += 1
        return True

    def _hand_over_rows(self, rows: RowGradients) -> None:
        if self._setting.tables:
            self._rows.hand_over(StepGradients(rows))
        if self._averaged is not None and not self.training.is_local:
            self._averaged.forget()

    def _mean_rows(self, own: Sequence[RowGradients]) -> tuple[RowGradients, bool]:
        """Return the row gradients of a step to which this worker contributes its `own` batches.

        Also return whether they are finite, which is checked only with dynamic loss scaling.
        """
        if not self._setting.tables:
            return {}, True
        scaler = self.training.scaler
        count = len(own) if self._is_averaging else 1
        rows = merged(own) if own else {}
        rows = divided(rows, max(count, 1) * (1.0 if scaler is None else scaler.scale))
        gathers = self._gathered is not None and not self.training.is_local
        if gathers and self._gathered is not None:
            rows = divided(self._gathered.sum(rows), self.training.num_present)
        if scaler is None or not scaler.is_dynamic:
            return rows, True
        is_finite = all(bool(np.isfinite(g).all()) for _, g in rows.values())
        if not gathers and not self.training.is_local:
            is_finite = all(self._world.all_gather_bytes(b"1" if is_finite else b""))
        return rows, is_finite

    def _average_rows(self, num_present: int) -> None:
        """Average rows whenever the workers average their parameters."""
        if self._averaged is not None:
            self._averaged.meet(num_present)

    def _leave_groups(self) -> None:
        self._rows.finish()

    def _end_threads(self) -> None:
        self.training.close()
        if self._failure is not None:
            self._rows.finish()


class HybridCollectiveMode(CollectiveMode):
    """Push rows to the servers in the background, as in mode "hybrid"."""

    name: ClassVar[str] = "hybrid"
    may_prefetch: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = True

    def _make_rows(self) -> Mode:
        assert self._config.rows is not None
        if isinstance(self._setting.store, LocalStore):
            raise ConfigError(
                "mode 'hybrid' sends rows to servers, but this job has none; start it with "
                "--servers, or use mode 'collective'"
            )
        setting = replace(self._setting, schedule=None, ranks=None)
        return AsyncMode(setting, self._config.rows.for_rows())


def _require_ranks(setting: ModeSetting) -> RankSetting:
    if setting.ranks is None:
        raise ConfigError(
            "mode 'collective' needs ModeSetting.ranks, the workers that step together, got None"
        )
    if setting.threads > 1:
        raise ConfigError(
            "mode 'collective' supports one training thread per worker, got "
            f"threads={setting.threads}; start more workers instead (sparsefleet launch "
            "--workers), or let torch use more threads inside a step "
            "(TrainerConfig(torch_threads=...))"
        )
    return setting.ranks


def _require_admitting(setting: ModeSetting) -> None:
    """Reject admission by count: workers see different keys and would admit different rows."""
    for name, spec in setting.tables.items():
        if setting.worker_num > 1 and not isinstance(spec.admission, AdmitAlways):
            raise ConfigError(
                f"table '{name}' has {type(spec.admission).__name__}, which counts keys per store, "
                "but without servers every worker has its own store; start the job with "
                "--servers, or use AdmitAlways"
            )


class GatheredRows:
    """Gathers the row gradients of all ranks. All ranks must make the same calls."""

    def __init__(self, world: World, tables: Mapping[str, TableSpec], traffic: Traffic) -> None:
        self._world = world
        self._tables = tables
        self._traffic = traffic

    def sum(self, own: RowGradients) -> RowGradients:
        """Return, by table, each distinct key of any rank with the sum of its gradients.

        Gradients are added in rank order, so the result is bit-identical on all ranks.
        """
        found = {}
        for table in sorted(self._tables):
            keys, gradients = own.get(table) or self._nothing(table)
            all_keys, all_gradients = gather_rows(
                self._world,
                torch.from_numpy(keys.view(np.int64)),
                torch.from_numpy(gradients),
                traffic=self._traffic,
            )
            if len(all_keys):
                gathered = (all_keys.numpy().view(np.uint64), all_gradients.numpy())
                found[table] = gathered if self._world.size == 1 else _every_key_once(gathered)
        return found

    def _nothing(self, table: str) -> tuple[Keys, Floats]:
        return np.empty(0, np.uint64), np.empty((0, self._tables[table].dim), np.float32)


def merged(parts: Sequence[RowGradients]) -> RowGradients:
    """Return each table's keys once, with the sums of their gradients.

    >>> one = (np.array([7], np.uint64), np.array([[1.0]], np.float32))
    >>> merged([{"ads": one}, {"ads": one}])
    {'ads': (array([7], dtype=uint64), array([[2.]], dtype=float32))}
    """
    if len(parts) == 1:
        return parts[0]
    tables = dict.fromkeys(table for part in parts for table in part)
    return {
        table: merge_gradients([part[table] for part in parts if table in part]) for table in tables
    }


def divided(rows: RowGradients, by: float) -> RowGradients:
    """Return all gradients divided by a number, in place if the array is writable."""
    if by == 1:
        return rows
    return {
        table: (keys, np.divide(g, np.float32(by), out=g if g.flags.writeable else None))
        for table, (keys, g) in rows.items()
    }


def _every_key_once(gathered: tuple[Keys, Floats]) -> tuple[Keys, Floats]:
    # Two parts are merged by key, even if the second is empty.
    return merge_gradients([gathered, (gathered[0][:0], gathered[1][:0])])


class RowAveraging:
    """Averages rows; keeps the values that rows in use had at the last averaging.

    As LocalSGD does for dense parameters, averaging moves every row that any worker changed by the
    mean change of all workers. Optimizer state stays with its worker. Not thread-safe.
    """

    def __init__(self, store: LocalStore, gathered: GatheredRows) -> None:
        self._store = store
        self._gathered = gathered
        self._before: dict[str, list[tuple[Keys, Floats]]] = {}
        self._seen: dict[str, set[int]] = {}

    def pulled(self, keys: Mapping[str, Keys], rows: Mapping[str, Floats]) -> None:
        """Record rows (float32[N, D]) that may be trained from now on; keys must be distinct."""
        for table, wanted in keys.items():
            seen = self._seen.setdefault(table, set())
            asked = wanted.tolist()
            new = np.array([key not in seen for key in asked], bool)
            if new.any():
                seen.update(asked)
                before = (wanted[new], rows[table][new])
                self._before.setdefault(table, []).append(before)

    def meet(self, num_present: int) -> None:
        """Average the rows; all workers must call it.

        num_present: the number of workers that have trained since the last averaging.
        """
        moved: RowGradients = {}
        for table, parts in self._before.items():
            keys = np.concatenate([keys for keys, _ in parts])
            before = np.concatenate([rows for _, rows in parts])
            now = self._store.pull(table, keys)
            changed = (before != now).any(axis=1)
            moved[table] = (keys[changed], (before - now)[changed])
            self._write(table, keys[changed], before[changed])
        for table, (keys, sums) in self._gathered.sum(moved).items():
            common = self._store.pull(table, keys)  # equal on all workers, even for new rows
            self._write(table, keys, common - sums / np.float32(num_present))
        self.forget()

    def forget(self) -> None:
        """Forget the recorded rows, since all workers have the same rows now."""
        self._before.clear()
        self._seen.clear()

    def _write(self, table: str, keys: Keys, values: Floats) -> None:
        """Set rows to exactly these values, keeping their optimizer state."""
        self._store.push(table, keys, -self._store.pull(table, keys), unique=True, add=True)
        self._store.push(table, keys, values, unique=True, add=True)
