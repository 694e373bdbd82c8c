"""Writes and reads Prometheus' text format.

This module does not use `prometheus_client`, whose counters are Python objects that the hot path
would have to call; here, native counters are read on request. The prediction service does use
`prometheus_client`, since its requests pass through Python anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from sparsefleet.monitor.series import CATALOGUE, Sample, metric_of

__all__ = ["CONTENT_TYPE", "expose", "parse"]

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
