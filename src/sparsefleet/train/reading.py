"""What the reader behind the data does while training runs, and what follows from it."""

from __future__ import annotations

from sparsefleet.data import ReaderStats

__all__ = ["ReadingWatch", "advise_reading", "describe_reading"]

_MEGABYTE = 1e6


class ReadingWatch:
    """Counts of data that has `stats()`, as readers, Datasets and loaders, since some moment.

    >>> watch = ReadingWatch([1, 2])
    >>> watch.begin(), watch.so_far()
    (None, None)
    """

    def __init__(self, data: object) -> None:
        self._data = data
        self._before = stats_of(data)

    def begin(self) -> None:
        """Counts from now on."""
        self._before = stats_of(self._data)

    def so_far(self) -> ReaderStats | None:
        """What was read since; None where the data does not count."""
        if self._before is None:
            return None
        now = stats_of(self._data)
        return None if now is None else now.since(self._before)


def stats_of(data: object) -> ReaderStats | None:
    """What the data says of its reading, if it is of a kind that does."""
    stats = getattr(data, "stats", None)
    if not callable(stats):
        return None
    try:
        told = stats()
    except TypeError:  # some other `stats`, which wants arguments
        return None
    return told if isinstance(told, ReaderStats) else None


def describe_reading(reading: ReaderStats, seconds: float) -> str:
    """One line: how much was read, how fast, and who waited for whom.

    >>> stats = ReaderStats(lines=2_000, bytes=1_000_000, bad_lines=3, threads=1,
    ...                     producers_blocked_s=0.5, consumers_blocked_s=1.25)
    >>> print(describe_reading(stats, 2.0))
    read 2,000 lines, 1.0 MB (1,000 lines a second) with 1 thread; training waited 1.2 s for \
batches, reading 0.5 s for training; 3 bad lines were left out
    """
    if reading.threads == 0:
        return f"took {reading.records:,} records" + (" from memory" if reading.records else "")
    noun, count = ("lines", reading.lines) if reading.lines else ("records", reading.records)
    rate = count / seconds if seconds > 0 else 0.0
    parts = [
        f"read {count:,} {noun}, {reading.bytes / _MEGABYTE:,.1f} MB ({rate:,.0f} {noun} a second) "
        f"with {_plural(reading.threads, 'thread')}",
        f"training waited {reading.consumers_blocked_s:.1f} s for batches, reading "
        f"{reading.producers_blocked_s:.1f} s for training",
    ]
    if reading.bad_lines:
        were = "was" if reading.bad_lines == 1 else "were"
        parts.append(f"{_plural(reading.bad_lines, 'bad line')} {were} left out")
    return "; ".join(parts)


def advise_reading(reading: ReaderStats) -> str:
    """What helps when training waits for batches.

    >>> advise_reading(ReaderStats(lines=9, threads=2, consumers_blocked_s=3.0))[:60]
    'training waits for the 2 threads that read; more of them on '
    """
    if reading.threads == 0:
        return (
            "the data is in memory, but making batches of it takes that long; prepare the next one "
            "while this one computes (prefetch=True), or take larger batches"
        )
    if reading.producers_blocked_s > reading.consumers_blocked_s:
        return (
            "batches were read in time, but taking them is the bottleneck; prepare the next one "
            "while this one computes (prefetch=True), or take larger batches"
        )
    if reading.lines == 0:
        return (
            "training waits for the generator of the loader; less Python for each sample, whole "
            "batches from NumPy (set_batch_generator), several at once (reader.xmap_readers, "
            "reader.multiprocess_reader), or files that are read natively (data.Reader)"
        )
    threads = (
        "thread that reads" if reading.threads == 1 else f"{reading.threads} threads that read"
    )
    return (
        f"training waits for the {threads}; more of them on free cores (Reader(threads=...)) and "
        "a file for each, a format in the place of a pipe command, or the data in memory "
        "(MemoryData)"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
