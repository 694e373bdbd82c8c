"""Hybrid: rows as in async, dense parameters as in sync."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.modes.async_mode import AsyncConfig
from sparsefleet.modes.merge_gradients import merge_gradients
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.sync import SyncMode


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig:
    """Send rows in the background; the knobs are those of AsyncConfig."""

    max_merge: int | None = None
    """Most mini-batches whose rows are merged into one push. None: the training threads."""

    queue_size: int | None = None
    """Mini-batches whose rows may wait to be sent. None: the training threads."""

    wait_s: float = 0.0
    """How long the sender lingers for another mini-batch."""

    merge: Literal["auto", "sum", "mean"] = "auto"
    """How rows of several mini-batches are merged. "auto": sum for plain SGD, else mean."""

    def __post_init__(self) -> None:
        self.for_rows()

    def for_rows(self) -> AsyncConfig:
        """The same knobs for the part that is as in async."""
        return AsyncConfig(
            max_merge=self.max_merge,
            queue_size=self.queue_size,
            wait_s=self.wait_s,
            merge=self.merge,
        )


class HybridMode(SyncMode):
    """Dense gradients take a round of all workers each step; rows are sent in the background.

    The many rows, each touched now and then, bear being late; the few dense parameters, moved
    by every step, do not. A schedule counts rounds.
    """

    name: ClassVar[str] = "hybrid"
    may_prefetch: ClassVar[bool] = True
    brings_rows: ClassVar[bool] = False  # they are pulled while the batch before computes
    keeps_gradients: ClassVar[bool] = True

    def __init__(self, setting: ModeSetting, config: HybridConfig | None = None) -> None:
        super().__init__(setting)
        rows = (config or HybridConfig()).for_rows()
        self._summed = rows.summed_tables(setting)
        self._sender = rows.sender(setting, self._send_rows)

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        staleness = self._sender.open_copies
        waited = self._sender.put(StepGradients(gradients.sparse)) if gradients.sparse else 0.0
        waited += self._round.meet(StepGradients({}, gradients.dense, gradients.dense_parts))
        self._record.stepped(waited, staleness)

    def flush(self) -> None:
        self._raise_failure()
        self._sender.wait_empty()
        self._fetch_dense()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._sender.fail(self._setting.worker_index, error)

    def _send_rows(self, copies: Sequence[StepGradients]) -> None:
        """In the background thread."""
        began = time.perf_counter()
        merged = merge_gradients(copies, summed=self._summed)
        self._store.push_many(merged.sparse, unique=len(copies) == 1)
        self._record.pushed(time.perf_counter() - began, len(copies))

    def _end_threads(self) -> None:
        self._sender.end()
