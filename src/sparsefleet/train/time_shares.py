"""Where the time of training threads went, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sparsefleet.data import ReaderStats
from sparsefleet.train.reading import advise_reading
from sparsefleet.train.step_clock import StepClock

__all__ = ["TimeShares", "advise"]

_HEALTHY = 0.5  # a share of computing below which something else is the bottleneck
_SEVERE = 0.3  # a share above which something other than computing is the bottleneck


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeShares:
    """Seconds, summed over threads.

    >>> TimeShares(data=1.0, compute=3.0).shares()["data"]
    0.25
    """

    data: float = 0.0
    """Waiting for batches."""

    pull: float = 0.0
    """Waiting for rows."""

    compute: float = 0.0
    """Forward, loss and backward."""

    push: float = 0.0
    """Handing gradients over: collecting and merging them and, as the mode wants, sending."""

    wait: float = 0.0
    """Waiting for other threads, for room in a queue, or for a save to begin."""

    other: float = 0.0
    """The rest: counting, and waiting for the interpreter."""

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def shares(self) -> dict[str, float]:
        """Name -> part of the total, 0..1."""
        total = self.total or 1.0
        return {field.name: getattr(self, field.name) / total for field in fields(self)}

    def __add__(self, other: TimeShares) -> TimeShares:
        return TimeShares(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @staticmethod
    def of(clock: StepClock, wait_s: float) -> TimeShares:
        """From a clock, and the seconds of its handing over that the mode spent waiting."""
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


_ADVICE = {
    "data": "reading batches is the bottleneck; read ahead (a DataLoader with workers, "
    "prefetch=True), parse less in Python, or keep the data in memory",
    "pull": "fetching rows is the bottleneck; larger batches, a mode that may prefetch (async, "
    "geo), more servers, or a faster link",
    "push": "handing gradients over is the bottleneck; larger batches, more servers, a mode that "
    "sends in the background (async, geo) or, in sync, workers of equal speed",
    "wait": "threads wait for each other or for the sender; async, geo or a larger send queue "
    "wait less, and so do batches of equal size",
    "other": "the Python around the steps is the bottleneck; larger batches, or workers instead "
    "of threads",
    "compute": "computing is the bottleneck, as it should be; more cores, threads or workers "
    "make it faster",
}


_LOCAL_ADVICE = {
    "pull": "looking rows up is the bottleneck; larger batches, or fewer different ids in one",
    "push": "applying gradients is the bottleneck; larger batches, or fewer different ids in one",
}
"""Where there are no servers."""


def advise(
    shares: TimeShares, reading: ReaderStats | None = None, *, is_local: bool = False
) -> str:
    """One sentence: the bottleneck, its share, and what helps.

    reading: what the reader of the data counted meanwhile, where there is one.
    is_local: tables are in this process.

    >>> advise(TimeShares(compute=9.0, data=1.0))[:46]
    '90 % compute: computing is the bottleneck, as '
    >>> advise(TimeShares(compute=5.0, data=4.0))[:45]
    '44 % data: reading batches is the bottleneck;'
    """
    if shares.compute <= 0:
        return "nothing was trained, the data had no batches"
    parts = shares.shares()
    computing = parts.pop("compute")
    name = max(parts, key=lambda part: parts[part])
    share = parts[name]
    if computing >= _HEALTHY and share < _SEVERE:
        name, share = "compute", computing
    told = {**_ADVICE, **_LOCAL_ADVICE} if is_local else _ADVICE
    advice = told[name] if name != "data" or reading is None else advise_reading(reading)
    return f"{100 * share:.0f} % {name}: {advice}"
