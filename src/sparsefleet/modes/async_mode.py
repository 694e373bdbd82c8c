"""Async mode: no worker waits for another, unless one falls too far behind."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative
from sparsefleet.modes.mode import Mode, ModeStats
from sparsefleet.modes.mode_setting import GRADIENTS, ModeSetting, StepGradients
from sparsefleet.modes.rates import StepCounter
from sparsefleet.modes.worker_group import WorkerGroup
from sparsefleet.optim import SGD
from sparsefleet.store.gradient_sender import GradientSender, SenderConfig

_MANY = 2**31 - 1
_FREE_MERGES = 4  # mini-batches per thread in one push, if merging does not change the result
_LINGER_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncConfig:
    """Push gradients in the background, and fetch dense values periodically."""

    max_merge: int | None = None
    """Maximum number of mini-batches merged into one push. None means the number of training
    threads, or four times that if merging only reduces traffic: every table sums its gradients, and
    there is neither a schedule nor a ``max_staleness``.
    """

    queue_size: int | None = None
    """Maximum number of mini-batches waiting to be sent; when the queue is full, training waits.
    None means the same as ``max_merge``. Larger values mean fewer stalls but staler gradients.
    """

    wait_s: float | None = None
    """How long the sender waits for one more mini-batch while it has fewer than ``max_merge``. With
    0, it sends whatever is queued; mini-batches still accumulate while a push is in flight. None
    means 0.05 s (Fluid sleeps five times for 10 ms) if merging only reduces traffic, otherwise 0.
    """

    steps_before_refresh: int | None = None
    """Dense values are fetched once more than this many mini-batches have been sent since the last
    fetch. None means the number of training threads, or 0 with ``max_staleness``.
    """

    merge: Literal["auto", "sum", "mean"] = "auto"
    """How mini-batches are merged. "auto" sums for tables with plain SGD, which gives the same
    result as separate pushes, and averages for all others, whose step does not scale with the
    gradient.
    """

    max_staleness: int | None = None
    """How many mini-batches a worker may be ahead of the slowest one. None means no bound."""

    warmup_steps: int = 1000
    """For this many mini-batches of a worker, rows are pulled at the start of a step instead of one
    batch ahead, and a step ends when its gradients are applied and the dense values are fetched.
    Early on, the model changes quickly and stale values cost quality; later they do not. Steps do
    not wait if one of the settings above other than ``merge`` is given.
    """

    def __post_init__(self) -> None:
        require_int(self, "warmup_steps", 0, _MANY)
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
        """Return the tables whose gradients are summed; gradients of all others are averaged."""
        optimizers = setting.optimizers()
        if self.merge != "auto":
            return frozenset(optimizers) if self.merge == "sum" else frozenset()
        return frozenset(name for name, optimizer in optimizers.items() if type(optimizer) is SGD)

    def sender_config(self, setting: ModeSetting) -> SenderConfig:
        """Return the config of a background sender that merges and waits as this config says."""
        linger_s = self.wait_s
        if linger_s is None:
            linger_s = _LINGER_S if self._merges_freely(setting) else 0.0
        return SenderConfig(
            max_merge=self._merge_limit(setting),
            queue_size=self.queue_size or self._merge_limit(setting),
            # With a bound, all threads may be waiting for exactly this push.
            linger_s=0.0 if self.max_staleness is not None else linger_s,
            summed=self.summed_tables(setting),
            wait_s=setting.wait_s,
        )

    def _merges_freely(self, setting: ModeSetting) -> bool:
        """Return whether one merged push has the same effect as separate pushes."""
        all_summed = self.summed_tables(setting) == frozenset(setting.optimizers())
        # With a schedule, separate pushes would have different rates.
        return all_summed and self.max_staleness is None and setting.schedule is None

    def _merge_limit(self, setting: ModeSetting) -> int:
        if self.max_merge is not None:
            return self.max_merge
        return setting.threads * (_FREE_MERGES if self._merges_freely(setting) else 1)

    @property
    def waits_in_warmup(self) -> bool:
        """Whether a step of the warm-up waits until its gradients are applied."""
        given = (self.max_merge, self.queue_size, self.wait_s, self.steps_before_refresh)
        return all(one is None for one in (*given, self.max_staleness))

    def staleness_bound(self, setting: ModeSetting) -> StalenessBound | None:
        """Return the bound on staleness, or None if there is none."""
        if self.max_staleness is None:
            return None
        return StalenessBound(setting, self.max_staleness, self.queue_size or setting.threads)


class AsyncMode(Mode):
    """Training threads queue their gradients and continue with the parameters in memory.

    One native thread merges and pushes them, and fetches the dense values periodically. Rows are
    pulled for every batch. A schedule counts the mini-batches of all workers. Since the count is
    known only after a push, the sender then calls back into Python for the new rates.
    """

    name: ClassVar[str] = "async"
    may_prefetch: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = True

    def __init__(self, setting: ModeSetting, config: AsyncConfig | None = None) -> None:
        super().__init__(setting)
        self.takes_parts = True
        config = config or AsyncConfig()
        self._bound = config.staleness_bound(setting)
        self._counter = StepCounter(setting)
        refresh_after = setting.threads if self._bound is None else 0
        if config.steps_before_refresh is not None:
            refresh_after = config.steps_before_refresh
        self._sender = setting.store.sender(
            replace(
                config.sender_config(setting),
                max_open=None if self._bound is None else self._bound.max_open,
                dense=self._fetched(),
                refresh_after=refresh_after,
                on_pushed=None if setting.schedule is None else self._counter.add,
            )
        )
        self._threads = ActiveThreads(setting.threads)
        at = setting.position
        self._steps = 0 if at is None else at.count("steps") + at.batches  # of this worker
        self._warmup_steps = config.warmup_steps
        self._waits_in_warmup = config.waits_in_warmup

    @property
    def needs_fresh_rows(self) -> bool:
        return self._steps < self._warmup_steps

    def start(self) -> None:
        """Fetch the dense values and, with a staleness bound, join the other workers."""
        super().start()
        self._counter.start()
        if self._bound is not None:
            self._bound.join(self._sender)

    @property
    def steps_of_schedule(self) -> int:
        return self._counter.total

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        is_warming_up = self._steps < self._warmup_steps
        self._steps += 1  # concurrent threads may lose a count, which does not matter
        origin = gradients.origin
        waited_s, staleness = self._sender.put(
            gradients.sparse,
            gradients.all_dense(),
            data=self._marks([origin]),
            alone=origin is not None and GRADIENTS in origin.partial,
        )
        if is_warming_up and self._waits_in_warmup:
            began = time.perf_counter()
            self._sender.flush()
            waited_s += time.perf_counter() - began
        self._record.stepped(waited_s, staleness)

    def state(self) -> dict[str, int]:
        bound = {} if self._bound is None else self._bound.state()
        return {"counted": self._counter.own, "steps": self._steps, **bound}

    def leave(self) -> None:
        self._raise_failure()
        if self._threads.leave() == 0 and self._bound is not None:
            self._sender.wait_empty()
            self._bound.leave()

    def rejoin(self) -> None:
        self._raise_failure()
        self._threads.rejoin()
        if self._bound is not None:
            self._sender.wait_empty()
            self._bound.next_pass(self._sender)

    def set_threads(self, threads: int) -> None:
        self._threads.set_threads(threads)

    def flush(self) -> None:
        self._raise_failure()
        self._sender.flush()

    def pause(self) -> None:
        self.flush()
        if self._bound is not None:
            self._bound.leave()

    def resume(self) -> None:
        self._raise_failure()
        if self._bound is not None:
            self._bound.next_pass(self._sender)
            if not self._threads.present:
                self._bound.leave()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._sender.fail(self._worker_error(error))

    def stats(self) -> ModeStats:
        return super().stats().with_sender(self._sender.stats)

    def _leave_groups(self) -> None:
        if self._bound is not None:
            self._bound.close()
        self._counter.close()

    def _end_threads(self) -> None:
        self._sender.end()


class StalenessBound:
    """Keeps a worker at most ``max_staleness`` mini-batches ahead of the slowest one.

    Stale synchronous parallel (Ho et al. 2013). The bound is split in two: up to ``max_open``
    mini-batches may be handed over and not yet applied, which the training thread enforces by
    waiting; the sender enforces the rest of the bound, on how far the applied mini-batches may be
    ahead of the slowest worker. A worker that has finished c mini-batches therefore knows that
    every other worker has applied at least c - max_staleness. Not thread-safe.
    """

    def __init__(self, setting: ModeSetting, max_staleness: int, queue_size: int) -> None:
        self.max_open = min(queue_size, (max_staleness + 1) // 2)
        self._ahead = max_staleness - self.max_open
        self._group = WorkerGroup(setting)
        self._first = 0 if setting.position is None else setting.position.batches

    def join(self, sender: GradientSender) -> None:
        """Join the first pass; from then on, the other workers wait for this one."""
        self._group.join()
        sender.bound_staleness(self._group.member, self._ahead, self._first)

    def state(self) -> dict[str, int]:
        """Return the state from which a process that replaces this one continues."""
        return self._group.state()

    def leave(self) -> None:
        """Leave the current pass, so no worker waits for this one. Idempotent."""
        self._group.leave()

    def next_pass(self, sender: GradientSender) -> None:
        """Wait for all workers, then start counting from 0 again."""
        self._group.next_pass(0)
        sender.bound_staleness(self._group.member, self._ahead)

    def close(self) -> None:
        """Leave the run. Idempotent."""
        self._group.close()


class ActiveThreads:
    """Counts the training threads that still have data in this pass. Thread-safe."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._present = threads
        self._lock = threading.Lock()

    @property
    def present(self) -> int:
        """Return the number of threads that have not left."""
        return self._present

    def leave(self) -> int:
        """Remove one thread and return the number of threads left."""
        with self._lock:
            if not self._present:
                raise ConfigError(
                    f"all {self._threads} threads have already left this pass: call rejoin() first"
                )
            self._present -= 1
            return self._present

    def set_threads(self, threads: int) -> None:
        """Set the number of threads; if all have left, it takes effect with ``rejoin``."""
        with self._lock:
            self._threads = threads
            self._present = threads if self._present else 0

    def rejoin(self) -> None:
        """Add all threads back."""
        with self._lock:
            self._present = self._threads
