"""Reads the metrics of other processes and compares them with earlier readings."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.monitor.endpoint_file import Target, read_targets
from sparsefleet.monitor.registry import parse
from sparsefleet.monitor.series import Sample

__all__ = ["Answer", "Interval", "Reading", "gathered", "quantile", "read_all", "read_one"]

_MAX_BYTES = 16 << 20
_THREADS = 16
Labels = tuple[tuple[str, str], ...]


class Reading:
    """The metrics of one process at one moment.

    >>> reading = Reading([Sample("a_total", (("table", "x"),), 2.0), Sample("b", (), 5.0)])
    >>> reading.get("b"), reading.by("a_total", "table"), reading.get("c")
    (5.0, {'x': 2.0}, 0.0)
    """

    def __init__(self, samples: Iterable[Sample], moment: float | None = None) -> None:
        self.moment = time.monotonic() if moment is None else moment
        self._values: dict[str, dict[Labels, float]] = {}
        for each in samples:
            self._values.setdefault(each.name, {})[each.labels] = each.value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: float = 0.0, **labels: str) -> float:
        """Return the value with this name and these labels, or `default` if there is none."""
        values = self._values.get(name, {})
        wanted = tuple(labels.items())
        return values.get(wanted, default)

    def sum(self, name: str) -> float:
        """Return the sum of a metric over all labels."""
        return sum(self._values.get(name, {}).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values by one label, summed over the other labels."""
        found: dict[str, float] = {}
        for labels, value in self._values.get(name, {}).items():
            for key, text in labels:
                if key == label:
                    found[text] = found.get(text, 0.0) + value
        return found

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Return a histogram as counts up to each bound, summed over all other labels."""
        found: dict[float, float] = {}
        for given, value in self._values.get(f"{name}_bucket", {}).items():
            of = dict(given)
            if all(of.get(key) == text for key, text in labels.items()):
                bound = float(of["le"])
                found[bound] = found.get(bound, 0.0) + value
        return found

    def samples(self) -> Iterator[Sample]:
        for name, values in self._values.items():
            for labels, value in values.items():
                yield Sample(name, labels, value)


class Interval:
    """The changes in a process between two readings.

    A counter that is smaller than before belongs to a restarted process, whose counters start at
    zero.

    >>> old, new = Reading([Sample("a", (), 2.0)], 10.0), Reading([Sample("a", (), 8.0)], 12.0)
    >>> Interval(old, new).rate("a")
    3.0
    """

    def __init__(self, before: Reading | None, after: Reading) -> None:
        self.before = before or Reading([], after.moment)
        self.after = after
        self.seconds = max(after.moment - self.before.moment, 1e-9)
        self.is_first = before is None

    def grown(self, name: str, **labels: str) -> float:
        """Return how much a counter grew, or 0 if there is no earlier reading."""
        if self.is_first:
            return 0.0
        return _grown(self.before.get(name, 0.0, **labels), self.after.get(name, 0.0, **labels))

    def rate(self, name: str, **labels: str) -> float:
        """Return the growth per second."""
        return self.grown(name, **labels) / self.seconds

    def grown_by(self, name: str, label: str) -> dict[str, float]:
        """Return how much a counter grew, by the values of one label."""
        if self.is_first:
            return {}
        before, after = self.before.by(name, label), self.after.by(name, label)
        return {text: _grown(before.get(text, 0.0), value) for text, value in after.items()}

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Return the counts added to a histogram since the earlier reading."""
        before = {} if self.is_first else self.before.buckets(name, **labels)
        after = self.after.buckets(name, **labels)
        return {bound: _grown(before.get(bound, 0.0), count) for bound, count in after.items()}


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the value below which `share` of a histogram lies; interpolates like Prometheus.

    >>> quantile({0.1: 50.0, 0.2: 100.0, float("inf"): 100.0}, 0.75)
    0.15000000000000002
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, low, below = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return low
            inside = buckets[bound] - below
            return low + (bound - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = bound, buckets[bound]
    return low


class Answer(NamedTuple):
    """The metrics of one process, or the reason why they could not be read."""

    target: Target
    reading: Reading | None
    seconds: float
    error: str = ""


def read_one(target: Target, timeout_s: float) -> Answer:
    """Read `/metrics` of one process. Returns, rather than raises, errors of that process."""
    where = parse_endpoint(target.address)
    begun = time.monotonic()
    connection = http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read(_MAX_BYTES)
        if response.status != http.client.OK:
            return Answer(target, None, time.monotonic() - begun, f"status {response.status}")
        reading = Reading(parse(body.decode("utf-8", "replace")))
        return Answer(target, reading, time.monotonic() - begun)
    except TimeoutError:
        return Answer(target, None, time.monotonic() - begun, f"no answer for {timeout_s:g} s")
    except (OSError, http.client.HTTPException) as error:
        return Answer(target, None, time.monotonic() - begun, str(error) or type(error).__name__)
    finally:
        connection.close()


def read_all(
    directory: str | os.PathLike[str], *, timeout_s: float = 1.0, others: Sequence[Target] = ()
) -> list[Answer]:
    """Read the metrics of all processes with an address in a directory, in parallel."""
    targets = [*read_targets(directory), *others]
    if not targets:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(targets)), "sparsefleet-read") as pool:
        answers = list(pool.map(lambda target: read_one(target, timeout_s), targets))
    return [part for answer in answers for part in _split(answer)]


def _split(answer: Answer) -> Iterator[Answer]:
    """Yield the metrics gathered by another launcher as if they had been read from its
    processes."""
    yield answer
    if answer.target.role != "launcher" or answer.reading is None:
        return
    parts: dict[tuple[str, str], list[Sample]] = {}
    for one in answer.reading.samples():
        if _is_gathered(one):
            (_, role), (_, index), *others = one.labels
            part = Sample(one.name, tuple(others), one.value)
            parts.setdefault((role, index), []).append(part)
    for (kind, number), samples in parts.items():
        reading = Reading(samples, answer.reading.moment)
        target = Target(kind, int(number), answer.target.address)
        yield Answer(target, reading, answer.seconds)


def _is_gathered(one: Sample) -> bool:
    """Return whether a launcher gathered this sample from one of its processes."""
    return one.labels[:1] in ((("role", "server"),), (("role", "worker"),)) and not (
        one.name.startswith("sparsefleet_job_")
    )


def gathered(answers: Iterable[Answer]) -> Iterator[Sample]:
    """Yield the metrics of all processes, each with its role and index as labels."""
    for target, reading, _, _ in answers:
        for one in reading.samples() if reading is not None else ():
            if any(name == "role" for name, _ in one.labels):
                # Belongs to a different launcher, whose gathered metrics are already among the
                # answers.
                if target.role == "launcher" and not _is_gathered(one):
                    yield one
            else:
                mine = (("role", target.role), ("index", str(target.index)))
                yield Sample(one.name, (*mine, *one.labels), one.value)
