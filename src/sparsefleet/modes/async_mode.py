"""Async: nobody waits for anybody, or only for workers that fall too far behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.field_checks import require, require_int, require_not_negative
from sparsefleet.modes.gradient_sender import GradientSender
from sparsefleet.modes.merge_gradients import merge_gradients
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.pace import Pace
from sparsefleet.modes.presence import Presence
from sparsefleet.modes.step_counter import StepCounter
from sparsefleet.optim import SGD

_MANY = 2**31 - 1
_FREE_MERGES = 4  # mini-batches of a thread in one push, where that changes nothing
_LINGER_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncConfig:
    """Send in the background, fetch now and then."""

    max_merge: int | None = None
    """Most mini-batches merged into one push. None: the number of training threads; four times
    as many where every table adds its gradients up and there is neither a schedule nor a
    ``max_staleness``, so that merging changes nothing but the traffic."""

    queue_size: int | None = None
    """Mini-batches that may wait to be sent; when full, training waits. None: as ``max_merge``.
    Larger: fewer stops, staler gradients."""

    wait_s: float | None = None
    """How long the sender lingers for another mini-batch while it has fewer than ``max_merge``.
    0 sends what is there: while one push is under way, the next mini-batches gather anyhow. None:
    0.05 s (Fluid's five naps of 10 ms) where merging changes nothing but the traffic, else 0."""

    steps_before_refresh: int | None = None
    """Dense values are fetched when more than this many mini-batches were sent since the last
    time. None: the number of training threads; with ``max_staleness``, after every push."""

    merge: Literal["auto", "sum", "mean"] = "auto"
    """How mini-batches are merged. "auto": sum for tables with plain SGD, which gives what single
    pushes would; mean for all others, whose steps do not grow with the gradient."""

    max_staleness: int | None = None
    """A worker may be at most this many mini-batches ahead of the slowest. None: no bound."""

    def __post_init__(self) -> None:
        for name, low in (("max_merge", 1), ("queue_size", 1)):
            if getattr(self, name) is not None:
                require_int(self, name, low, _MANY)
        for name in ("steps_before_refresh", "max_staleness"):
            if getattr(self, name) is not None:
                require_int(self, name, 0, _MANY)
        if self.wait_s is not None:
            require_not_negative(self, "wait_s")
        require(self.merge in ("auto", "sum", "mean"), self, "merge", "'auto', 'sum' or 'mean'")

    def summed_tables(self, setting: ModeSetting) -> frozenset[str]:
        """The tables whose gradients are added up; those of all others are averaged."""
        optimizers = setting.optimizers()
        if self.merge != "auto":
            return frozenset(optimizers) if self.merge == "sum" else frozenset()
        return frozenset(name for name, optimizer in optimizers.items() if type(optimizer) is SGD)

    def sender(
        self, setting: ModeSetting, send: Callable[[Sequence[StepGradients]], None]
    ) -> GradientSender:
        """A sender with these knobs."""
        linger_s = self.wait_s
        if linger_s is None:
            linger_s = _LINGER_S if self._merges_freely(setting) else 0.0
        return GradientSender(
            send,
            max_merge=self._merge_limit(setting),
            queue_size=self.queue_size or self._merge_limit(setting),
            # Under a bound, threads may all be waiting for this very push.
            linger_s=0.0 if self.max_staleness is not None else linger_s,
            wait_s=setting.wait_s,
        )

    def _merges_freely(self, setting: ModeSetting) -> bool:
        """Whether one push of merged gradients does what as many single pushes would."""
        all_summed = self.summed_tables(setting) == frozenset(setting.optimizers())
        # Under a schedule each would have a rate of its own.
        return all_summed and self.max_staleness is None and setting.schedule is None

    def _merge_limit(self, setting: ModeSetting) -> int:
        if self.max_merge is not None:
            return self.max_merge
        return setting.threads * (_FREE_MERGES if self._merges_freely(setting) else 1)

    def pace(self, setting: ModeSetting) -> Pace | None:
        """The bound on staleness, if there is one."""
        if self.max_staleness is None:
            return None
        return Pace(setting, self.max_staleness, self.queue_size or setting.threads)


class AsyncMode(Mode):
    """Training threads queue their gradients and go on with what parameters are in memory.

    One background thread merges, pushes and now and then fetches the dense values. Rows are
    pulled fresh for every batch. A schedule counts mini-batches of all workers.
    """

    name: ClassVar[str] = "async"
    may_prefetch: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = True

    def __init__(self, setting: ModeSetting, config: AsyncConfig | None = None) -> None:
        super().__init__(setting)
        self.takes_parts = True
        config = config or AsyncConfig()
        self._summed = config.summed_tables(setting)
        self._sender = config.sender(setting, self._send)
        self._pace = config.pace(setting)
        self._counter = StepCounter(setting)
        self._refresh_after = setting.threads if self._pace is None else 0
        if config.steps_before_refresh is not None:
            self._refresh_after = config.steps_before_refresh
        self._since_refresh = 0
        self._presence = Presence(setting.threads)

    def start(self) -> None:
        """Fetches the dense values; under a bound, joins the other workers."""
        super().start()
        self._counter.start()
        if self._pace is not None:
            self._pace.join()

    @property
    def steps_of_schedule(self) -> int:
        return self._counter.total

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        staleness = self._sender.open_copies + self._since_refresh
        max_open = None if self._pace is None else self._pace.max_open
        waited = self._sender.put(gradients, max_open=max_open)
        self._record.stepped(waited, staleness)

    def leave(self) -> None:
        self._raise_failure()
        if self._presence.leave() == 0 and self._pace is not None:
            self._sender.wait_empty()
            self._pace.leave()

    def rejoin(self) -> None:
        self._raise_failure()
        self._presence.rejoin()
        if self._pace is not None:
            self._sender.wait_empty()
            self._pace.next_pass()

    def set_threads(self, threads: int) -> None:
        self._presence.set_threads(threads)

    def flush(self) -> None:
        self._raise_failure()
        self._sender.wait_empty()
        self._fetch_dense()
        self._since_refresh = 0

    def pause(self) -> None:
        self.flush()
        if self._pace is not None:
            self._pace.leave()

    def resume(self) -> None:
        self._raise_failure()
        if self._pace is not None:
            self._pace.next_pass()
            if not self._presence.present:
                self._pace.leave()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if self._pace is not None:
            self._pace.give_up()
        self._sender.fail(self._setting.worker_index, error)

    def _send(self, copies: Sequence[StepGradients]) -> None:
        """In the background thread."""
        began = time.perf_counter()
        merged = merge_gradients(copies, summed=self._summed)
        is_due = self._since_refresh + len(copies) > self._refresh_after
        # Under a bound, values are fetched when the others have caught up.
        comes_along = is_due and self._pace is None
        self._store.push_many(
            merged.sparse,
            merged.all_dense(),
            values=self._fetched() if comes_along else None,
            unique=len(copies) == 1,
        )
        self._record.pushed(time.perf_counter() - began, len(copies))
        self._counter.add(len(copies))
        self._since_refresh += len(copies)
        if self._pace is not None:
            self._pace.applied(len(copies))
        if is_due:
            self._fetch_dense(but=merged.all_dense() if comes_along else ())
            self._since_refresh = 0

    def _say_goodbye(self) -> None:
        if self._pace is not None:
            self._pace.close()
        self._counter.close()

    def _end_threads(self) -> None:
        self._sender.end()
