"""The sources of the metrics that a process reports, and the text format of its reports."""

from __future__ import annotations

import logging
import math
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from sparsefleet.monitor.series import CATALOGUE, Sample, metric_of, sample

__all__ = ["CONTENT_TYPE", "PROCESS", "Registry", "Source", "expose", "parse", "process_samples"]

# Writes and reads Prometheus' text format.
#
# This module does not use `prometheus_client`, whose counters are Python objects that the hot path
# would have to call; here, native counters are read on request. The prediction service does use
# `prometheus_client`, since its requests pass through Python anyway.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def expose(samples: Iterable[Sample]) -> str:
    """Return the samples as text, grouped by metric.

    >>> print(expose([Sample("sparsefleet_table_rows", (("table", "ads"),), 3.0)]), end="")
    # HELP sparsefleet_table_rows Rows on this server.
    # TYPE sparsefleet_table_rows gauge
    sparsefleet_table_rows{table="ads"} 3
    """
    by_metric: dict[str, list[Sample]] = {}
    for one in samples:
        by_metric.setdefault(metric_of(one.name), []).append(one)
    lines = []
    for name, members in by_metric.items():
        series = CATALOGUE.get(name)
        if series is not None:
            lines.append(f"# HELP {name} {_escape_help(series.help)}")
            lines.append(f"# TYPE {name} {series.kind}")
        lines += [_line(member) for member in members]
    return "".join(f"{line}\n" for line in lines)


def _line(one: Sample) -> str:
    labels = ",".join(f'{name}="{_escape(text)}"' for name, text in one.labels)
    return (
        f"{one.name}{{{labels}}} {_number(one.value)}"
        if labels
        else (f"{one.name} {_number(one.value)}")
    )


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def parse(text: str) -> list[Sample]:
    """Parse the samples from text in this format; other lines are ignored.

    >>> parse('a{x="1",y="z"} 4')
    [Sample(name='a', labels=(('x', '1'), ('y', 'z')), value=4.0)]
    """
    found = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = tuple((name, _unescape(value)) for name, value in _LABEL.findall(match[2] or ""))
        found.append(Sample(match[1], labels, value))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0][1]), text)


Source = Callable[[], Iterable[Sample]]
"""Returns samples on request. It is called on a separate thread while the process works."""

_log = logging.getLogger("sparsefleet.monitor")


class Registry:
    """The metric sources of one process. Thread-safe.

    >>> registry = Registry()
    >>> remove = registry.add(lambda: [sample("sparsefleet_worker_epoch", 2)])
    >>> registry.collect()[0].value
    2.0
    >>> remove()
    >>> [each.name for each in registry.collect()]
    ['sparsefleet_scrape_errors_total']
    """

    def __init__(self, *sources: Source) -> None:
        self._lock = threading.Lock()
        self._sources: list[Source] = list(sources)
        self._failed: set[int] = set()
        self._errors = 0

    def add(self, source: Source) -> Callable[[], None]:
        """Add a source; return a function that removes it."""
        with self._lock:
            self._sources.append(source)

        def remove() -> None:
            with self._lock:
                if source in self._sources:
                    self._sources.remove(source)

        return remove

    def collect(self) -> list[Sample]:
        """Return all samples. A source that raises is skipped, counted, and logged only once."""
        with self._lock:
            sources = list(self._sources)
        found: list[Sample] = []
        for source in sources:
            try:
                found += source()
            except Exception:  # a scrape must not fail because one component is shutting down
                self._errors += 1
                if id(source) not in self._failed:
                    self._failed.add(id(source))
                    _log.warning("a metrics source failed", exc_info=True)
        found.append(sample("sparsefleet_scrape_errors_total", self._errors))
        return found


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STARTED = time.time()


def process_samples() -> Iterator[Sample]:
    """Yield the memory, CPU time, threads and files of this process."""
    from sparsefleet import __version__  # imported here to avoid a circular import

    yield sample("sparsefleet_build_info", 1, version=__version__)
    yield sample("sparsefleet_process_start_time_seconds", _STARTED)
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield sample("sparsefleet_process_cpu_seconds_total", used.ru_utime + used.ru_stime)
    yield sample("sparsefleet_process_major_faults_total", used.ru_majflt)
    yield sample(
        "sparsefleet_process_threads", threading.active_count() if _is_bare() else _of("Threads")
    )
    if _is_bare():
        yield sample("sparsefleet_process_resident_memory_bytes", used.ru_maxrss)
        return
    yield sample("sparsefleet_process_resident_memory_bytes", 1024 * _of("VmRSS"))
    yield sample("sparsefleet_process_swap_bytes", 1024 * _of("VmSwap"))
    yield sample("sparsefleet_process_open_fds", len(os.listdir("/proc/self/fd")))


def _is_bare() -> bool:
    """Return whether this system lacks /proc."""
    return sys.platform != "linux"


def _of(field: str) -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
    return 0


PROCESS = Registry(process_samples)
"""The metric sources of this process, which `serve_metrics` exposes."""
