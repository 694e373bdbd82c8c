"""The content of one chart of bench/growth.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Figure:
    """Series of points over one quantity."""

    name: str
    title: str
    x_label: str
    y_label: str
    is_x_log: bool = False
    is_y_log: bool = False
    about: str = ""
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    """Points as [x, median, minimum, maximum]."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors of series that could not be measured completely."""

    def add(self, series: str, x: float, taken: Sequence[float]) -> None:
        """Add a point from all its repeats."""
        point = [x, statistics.median(taken), min(taken), max(taken)]
        self.series.setdefault(series, []).append(point)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
