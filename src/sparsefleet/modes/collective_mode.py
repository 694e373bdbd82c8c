"""Collective: workers step dense parameters themselves, with the mean of all workers' gradients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from sparsefleet.collective import CollectiveTraining
from sparsefleet.errors import ConfigError
from sparsefleet.modes.async_mode import AsyncMode
from sparsefleet.modes.collective_config import CollectiveConfig
from sparsefleet.modes.gathered_rows import GatheredRows, RowGradients, divided, merged
from sparsefleet.modes.half_async import HalfAsyncMode
from sparsefleet.modes.local import LocalMode
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting, RankSetting, StepGradients
from sparsefleet.modes.mode_stats import ModeStats
from sparsefleet.modes.rates import RateKeeper
from sparsefleet.modes.row_averaging import RowAveraging
from sparsefleet.modes.sync import SyncMode
from sparsefleet.store import AdmitAlways, LocalStore
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown

__all__ = ["CollectiveMode", "HybridCollectiveMode"]


class CollectiveMode(Mode):
    """Gradients of dense parameters travel between the workers, as a `CollectiveStrategy` says.

    Rows step with them. On servers that is a round of all workers; without servers every worker
    holds the tables whole, and takes each step with the row gradients of all. With LocalSGD rows
    go to the servers without waiting, or are averaged with the parameters. A schedule counts
    optimizer steps. One training thread a worker.
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
        self._rates = RateKeeper.of(setting)
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
        """What of the step belongs to dense parameters."""
        self._config = config
        self._rows = self._make_rows()
        self._gathered: GatheredRows | None = None
        if setting.tables and isinstance(setting.store, LocalStore):
            self._gathered = GatheredRows(self._world, setting.tables, self.training.traffic)
            if self._is_local_sgd:
                self._averaged = RowAveraging(setting.store, self._gathered)

    # -- what training calls ------------------------------------------------------------------

    def start(self) -> None:
        """Sets the first rates and joins the other workers."""
        super().start()
        self._rows.start()

    def forward(self) -> AbstractContextManager[None]:
        return self.training.forward()

    def backward(self, loss: Tensor) -> None:
        self.training.backward(loss)

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        self._batches += 1
        self._pending.append(gradients.sparse)
        num_pending = self.training.num_merged
        began = time.perf_counter()
        num_steps = self.training.num_steps
        self.training.step()
        if self.training.num_steps > num_steps:
            self._record.pushed(time.perf_counter() - began, num_pending)
            self._pending.clear()
        self._record.stepped(0.0)

    def leave(self) -> None:
        """Also follows the others until none has data: so all have the same parameters."""
        self._raise_failure()
        self._has_left = True
        self._follow()
        self._leave_rows()

    def rejoin(self) -> None:
        """Also waits for the other workers, and takes over their count of steps."""
        self._raise_failure()
        counts = self._world.all_gather_bytes(f"{self._rounds} {self._batches}".encode())
        self._rounds = max(int(each.split()[0]) for each in counts)
        self._batches = max(int(each.split()[1]) for each in counts)
        self._rows.rejoin()
        self._has_left = self._rows_have_left = False

    def pause(self) -> None:
        """All workers stop after the same step, and those without data cease to follow."""
        self._raise_failure()
        if not self._has_left:  # who has was let go by those that pause
            self._follow()
        self._rows.flush()

    def resume(self) -> None:
        """Who has no more data follows the others again."""
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
        """Also what was sent between workers."""
        traffic = self.training.traffic
        return replace(super().stats(), sent_bytes=traffic.sent_bytes, collectives=traffic.calls)

    # -- inside -------------------------------------------------------------------------------

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        found = super()._pull_rows(keys, train, unknown)
        if train and self._averaged is not None:
            self._averaged.pulled(keys, found)
        return found

    def _make_rows(self) -> Mode:
        """The mode by which rows reach the store; it knows nothing of dense parameters."""
        setting = replace(self._setting, schedule=None, ranks=None)
        if isinstance(setting.store, LocalStore):
            _require_admitting(setting)
            return LocalMode(replace(setting, worker_index=0, worker_num=1))
        if not setting.tables or self._is_local_sgd:
            return HalfAsyncMode(setting)
        return SyncMode(setting)

    def _leave_rows(self) -> None:
        """No other worker waits for rows of this one in this pass. Idempotent."""
        if not self._rows_have_left:
            self._rows_have_left = True
            self._rows.leave()

    def _follow(self) -> None:
        """Until no worker has anything to do; what was merged and not applied is applied."""
        self.training.leave()
        self._pending.clear()

    def _apply(self) -> bool:
        """One update, on all workers alike; False if rows overflow, and then nothing is done."""
        count = self.training.num_merged  # others are of steps that were given up
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
        """Row gradients of the step that `own` batches of this worker, if any, are part of; and
        whether they are finite, as far as that is looked at."""
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
        """When workers average their parameters."""
        if self._averaged is not None:
            self._averaged.meet(num_present)

    def _say_goodbye(self) -> None:
        self._rows.finish()

    def _end_threads(self) -> None:
        self.training.close()
        if self._failure is not None:
            self._rows.finish()


class HybridCollectiveMode(CollectiveMode):
    """Rows are sent to the servers in the background, as in mode "hybrid"."""

    name: ClassVar[str] = "hybrid"
    may_prefetch: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = True

    def _make_rows(self) -> Mode:
        assert self._config.rows is not None
        if isinstance(self._setting.store, LocalStore):
            raise ConfigError(
                "mode 'hybrid' sends rows to servers, and this job has none: start it with "
                "--servers, or choose mode 'collective'"
            )
        setting = replace(self._setting, schedule=None, ranks=None)
        return AsyncMode(setting, self._config.rows.for_rows())


def _require_ranks(setting: ModeSetting) -> RankSetting:
    if setting.ranks is None:
        raise ConfigError("mode 'collective' needs ModeSetting.ranks: the workers that step alike")
    if setting.threads > 1:
        raise ConfigError(
            f"mode 'collective' has one training thread a worker, got threads={setting.threads}: "
            "start more workers instead (sparsefleet launch --workers), or let torch use more "
            "threads inside a step (TrainerConfig(torch_threads=...))"
        )
    return setting.ranks


def _require_admitting(setting: ModeSetting) -> None:
    """Workers see other keys: what admits a row by how often it was seen would differ."""
    for name, spec in setting.tables.items():
        if setting.worker_num > 1 and not isinstance(spec.admission, AdmitAlways):
            raise ConfigError(
                f"table '{name}' has {type(spec.admission).__name__}, which counts what one store "
                "sees, but without servers each of the workers has a store of its own: start the "
                "job with --servers, or admit rows always"
            )
