"""Tracks how training threads and readers spend their time, and suggests how to save some of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from time import perf_counter

from sparsefleet.data import ReaderStats
from sparsefleet.engine.workload import Outcome
from sparsefleet.monitor import find_bottleneck

__all__ = [
    "ReadingWatch",
    "StepClock",
    "TimeShares",
    "advise",
    "advise_reading",
    "describe_reading",
    "total",
]


_MEGABYTE = 1e6


class StepClock:
    """The counts of one thread in one pass, and how much time it spent on each activity.

    Only that thread writes to the clock. Other threads may read it at any time: each number is
    consistent on its own, but two numbers may belong to different steps.
    """

    __slots__ = (
        "compute_s",
        "data_s",
        "elapsed_s",
        "ended_at",
        "examples",
        "hand_over_s",
        "loss_sum",
        "pull_s",
        "recent",
        "save_s",
        "skipped",
        "steps",
    )

    def __init__(self, window_batches: int = 1) -> None:
        self.steps = 0
        """Number of finished steps, excluding skipped ones."""
        self.examples = 0
        """Number of examples in those steps."""
        self.skipped = 0
        """Number of skipped batches, such as batches with a non-finite loss."""
        self.loss_sum = 0.0
        """Sum of loss * examples over the steps."""
        self.data_s = 0.0
        """Time spent waiting for batches."""
        self.pull_s = 0.0
        """Time spent waiting for rows before the model runs."""
        self.compute_s = 0.0
        """Time spent in forward, loss and backward."""
        self.hand_over_s = 0.0
        """Time from the end of the backward pass until the mode released the thread."""
        self.save_s = 0.0
        """Time paused for saves."""
        self.elapsed_s = 0.0
        """The thread's total time; set when the thread is done."""
        self.recent: deque[Outcome] = deque(maxlen=window_batches)
        """The outcomes of the last batches."""
        self.ended_at = 0.0
        """When a custom loop's last step ended (`perf_counter`); initially 0."""

    def count(
        self,
        examples: int,
        begun: float,
        entered: float,
        computed: float,
        *,
        hand_over_s: float = 0.0,
        loss: float | None = None,
        is_skipped: bool = False,
    ) -> None:
        """Count a step taken by a custom loop; times are from `perf_counter`.

        The time since the last step is added to the elapsed time, so it counts as "other": what a
        loop does between its steps is unknown.
        """
        self.pull_s += entered - begun
        self.compute_s += computed - entered
        self.hand_over_s += hand_over_s
        ended = perf_counter()
        self.elapsed_s += ended - (self.ended_at or begun)
        self.ended_at = ended
        if is_skipped:
            self.skipped += 1
            return
        self.steps += 1
        self.examples += examples
        if loss is not None and math.isfinite(loss):  # the sum lives as long as the process
            self.loss_sum += loss * examples

    @property
    def loss(self) -> float:
        """Return the mean loss per example; nan before the first step."""
        return self.loss_sum / self.examples if self.examples else float("nan")


def total(clocks: Iterable[StepClock]) -> StepClock:
    """Return the sums over threads or passes, without recent batches.

    >>> first, second = StepClock(), StepClock()
    >>> first.data_s, second.data_s = 1.0, 2.5
    >>> total([first, second]).data_s
    3.5
    """
    result = StepClock()
    for clock in clocks:
        for name in StepClock.__slots__:
            if name not in ("recent", "ended_at"):
                setattr(result, name, getattr(result, name) + getattr(clock, name))
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeShares:
    """Seconds by activity, summed over threads.

    >>> TimeShares(data=1.0, compute=3.0).shares()["data"]
    0.25
    """

    data: float = 0.0
    """Time spent waiting for batches."""

    pull: float = 0.0
    """Time spent waiting for rows."""

    compute: float = 0.0
    """Time spent in forward, loss and backward."""

    push: float = 0.0
    """Time spent collecting, merging and, depending on the mode, sending gradients."""

    wait: float = 0.0
    """Time spent waiting for other threads, for room in a queue, or for a save to start."""

    other: float = 0.0
    """The remaining time, such as counting and waiting for the interpreter."""

    @property
    def total(self) -> float:
        """Return the total time of all activities, in seconds."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on each activity, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def shares(self) -> dict[str, float]:
        """Return each activity's fraction of the total (0..1), by name."""
        total = self.total or 1.0
        return {name: seconds / total for name, seconds in self.seconds().items()}

    def __add__(self, other: TimeShares) -> TimeShares:
        return TimeShares(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @staticmethod
    def of(clock: StepClock, wait_s: float) -> TimeShares:
        """Build the times from a clock.

        wait_s: how much of the clock's time for handing over gradients was spent waiting.
        """
        wait = min(max(wait_s, 0.0), clock.hand_over_s)
        known = clock.data_s + clock.pull_s + clock.compute_s + clock.hand_over_s + clock.save_s
        return TimeShares(
            data=clock.data_s,
            pull=clock.pull_s,
            compute=clock.compute_s,
            push=clock.hand_over_s - wait,
            wait=wait + clock.save_s,
            other=max(clock.elapsed_s - known, 0.0),
        )


def advise(
    shares: TimeShares, reading: ReaderStats | None = None, *, is_local: bool = False
) -> str:
    """Return a sentence that names the bottleneck and its share, and says how to reduce it.

    reading: the reader's counts for the same period, if there is a reader.
    is_local: whether tables are in this process.

    >>> advise(TimeShares(compute=9.0, data=1.0))[:46]
    '90% compute: computing is the bottleneck, as i'
    >>> advise(TimeShares(compute=5.0, data=4.0))[:45]
    '44% data: reading batches is the bottleneck; '
    """
    found = find_bottleneck(shares.seconds(), is_local=is_local)
    if found is None:
        return "nothing was trained because the data had no batches"
    if found.activity == "data" and reading is not None:
        found = found._replace(advice=advise_reading(reading))
    return str(found)


class ReadingWatch:
    """Tracks the reading counts of data that has `stats()` (readers, Datasets, loaders).

    >>> watch = ReadingWatch([1, 2])
    >>> watch.begin(), watch.so_far()
    (None, None)
    """

    def __init__(self, data: object) -> None:
        self._data = data
        self._before = stats_of(data)

    def begin(self) -> None:
        """Start counting from now."""
        self._before = stats_of(self._data)

    def so_far(self) -> ReaderStats | None:
        """Return the counts since `begin`, or None if the data keeps no counts."""
        if self._before is None:
            return None
        now = stats_of(self._data)
        return None if now is None else now.since(self._before)


def stats_of(data: object) -> ReaderStats | None:
    """Return the reading statistics that the data reports, if any."""
    stats = getattr(data, "stats", None)
    if not callable(stats):
        return None
    try:
        counted = stats()
    except TypeError:  # an unrelated `stats` that requires arguments
        return None
    return counted if isinstance(counted, ReaderStats) else None


def describe_reading(reading: ReaderStats, seconds: float) -> str:
    """Return one line that says how much was read, how fast, and who waited for whom.

    >>> stats = ReaderStats(lines=2_000, bytes=1_000_000, bad_lines=3, threads=1,
    ...                     producers_blocked_s=0.5, consumers_blocked_s=1.25)
    >>> print(describe_reading(stats, 2.0))
    read 2,000 lines, 1.0 MB (1,000 lines per second) with 1 thread; the batch queue \
was empty for 1.2 s and full for 0.5 s; 3 bad lines were skipped
    """
    if reading.threads == 0:
        return f"took {reading.records:,} records" + (" from memory" if reading.records else "")
    noun, count = ("lines", reading.lines) if reading.lines else ("records", reading.records)
    rate = count / seconds if seconds > 0 else 0.0
    parts = [
        f"read {count:,} {noun}, {reading.bytes / _MEGABYTE:,.1f} MB ({rate:,.0f} {noun} per "
        f"second) with {_plural(reading.threads, 'thread')}",
        # Not "training waited": a thread also waits for its turn, for the interpreter, and for the
        # conversion to tensors, all of which the time table counts as waiting for batches.
        f"the batch queue was empty for {reading.consumers_blocked_s:.1f} s and full for "
        f"{reading.producers_blocked_s:.1f} s",
    ]
    if reading.bad_lines:
        were = "was" if reading.bad_lines == 1 else "were"
        parts.append(f"{_plural(reading.bad_lines, 'bad line')} {were} skipped")
    return "; ".join(parts)


def advise_reading(reading: ReaderStats) -> str:
    """Return advice for training that waits for batches.

    >>> advise_reading(ReaderStats(lines=9, threads=2, consumers_blocked_s=3.0))[:60]
    'training waits for the 2 reading threads; use more of them o'
    """
    if reading.threads == 0:
        return (
            "the data is in memory, but making batches from it is slow; prepare the next batch "
            "while the current one computes (prefetch=True), or use larger batches"
        )
    if reading.producers_blocked_s > reading.consumers_blocked_s:
        return (
            "batches were read in time, but taking them is the bottleneck; prepare the next batch "
            "while the current one computes (prefetch=True), or use larger batches"
        )
    if reading.lines == 0:
        return (
            "training waits for the Python code that makes batches; do less work per sample, "
            "make whole batches with NumPy, run several generators in processes, or read files "
            "natively (data.Reader)"
        )
    threads = "reading thread" if reading.threads == 1 else f"{reading.threads} reading threads"
    return (
        f"training waits for the {threads}; use more of them on free cores (Reader(threads=...)) "
        "with a file for each, use a built-in format instead of a pipe command, or keep the data "
        "in memory (MemoryData)"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
