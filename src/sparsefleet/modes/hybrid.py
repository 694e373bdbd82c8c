"""Hybrid mode: rows are trained as in async, dense parameters as in sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.modes.async_mode import AsyncConfig
from sparsefleet.modes.mode import ModeStats
from sparsefleet.modes.mode_setting import (
    GRADIENTS,
    ROWS,
    BatchOrigin,
    ModeSetting,
    StepGradients,
)
from sparsefleet.modes.sync import SyncMode


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig:
    """Push rows in the background; the fields have the same meaning as in AsyncConfig."""

    max_merge: int | None = None
    """Maximum number of mini-batches whose rows are merged. None works as in ``AsyncConfig``."""

    queue_size: int | None = None
    """Maximum number of mini-batches whose rows may be queued. None means the same as
    ``max_merge``.
    """

    wait_s: float = 0.0
    """How long the sender waits for another mini-batch."""

    merge: Literal["auto", "sum", "mean"] = "auto"
    """How rows of several mini-batches are merged. "auto" sums for plain SGD, otherwise averages.
    """

    def __post_init__(self) -> None:
        self.for_rows()

    def for_rows(self) -> AsyncConfig:
        """Return the "async" config used for rows."""
        return AsyncConfig(
            max_merge=self.max_merge,
            queue_size=self.queue_size,
            wait_s=self.wait_s,
            merge=self.merge,
        )


class HybridMode(SyncMode):
    """Sends dense gradients in a round of all workers in each step, and rows in the background.

    A row is updated only occasionally and tolerates delay; the few dense parameters change in every
    step and do not. A schedule counts rounds.
    """

    name: ClassVar[str] = "hybrid"
    may_prefetch: ClassVar[bool] = True
    brings_rows: ClassVar[bool] = False  # pulled while the previous batch computes
    keeps_gradients: ClassVar[bool] = True
    rounds_count_steps: ClassVar[bool] = False  # row pushes advance it
    data_streams: ClassVar[tuple[int, ...]] = (GRADIENTS, ROWS)

    def __init__(self, setting: ModeSetting, config: HybridConfig | None = None) -> None:
        super().__init__(setting)
        rows = (config or HybridConfig()).for_rows()
        self._sender = setting.store.sender(rows.sender_config(setting))

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        waited, staleness = 0.0, self._sender.stats.open
        origin = gradients.origin
        if gradients.sparse or origin is not None:
            data = [] if origin is None else origin.marks(ROWS)
            alone = origin is not None and ROWS in origin.partial
            waited, staleness = self._sender.put(gradients.sparse, {}, data=data, alone=alone)
        if origin is None or GRADIENTS not in origin.applied:
            dense = StepGradients(
                {}, gradients.dense, gradients.dense_parts, origin=gradients.origin
            )
            waited += self._round.meet(dense)
        self._record.stepped(waited, staleness)

    def drop(self, origin: BatchOrigin) -> None:
        super().drop(origin)
        self._sender.put({}, {}, data=origin.marks(ROWS), alone=True)

    def flush(self) -> None:
        self._raise_failure()
        self._sender.wait_empty()
        self._fetch_dense()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._sender.fail(self._worker_error(error))

    def stats(self) -> ModeStats:
        return super().stats().with_sender(self._sender.stats)

    def _end_threads(self) -> None:
        self._sender.end()
