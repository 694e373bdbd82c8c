"""Medians out of a day's record, by group, side and batch size; None of what was not measured."""

from __future__ import annotations

import statistics
from typing import Any

from ctr_names import PRODUCTS
from day_record import DayRecord

GROUPS = ("local", "rounds", "background", "files")
BATCHES = (1000, 100)


class SideMedians:
    """Of CTR-DNN, whose groups are parts of the record."""

    def __init__(self, record: DayRecord) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        for group in GROUPS:
            if (figures := record.figures(f"ctr-{group}")) is not None:
                self.groups[group] = figures[group]

    def sections(self, group: str, side: str, batch: int) -> list[dict[str, float]]:
        of_side = self.groups.get(group, {}).get(side, {})
        found: list[dict[str, float]] = of_side.get("sections", {}).get(str(batch), [])
        return found

    def rate(self, group: str, side: str, batch: int) -> float | None:
        return self._median(group, side, batch, "examples_per_s")

    def cpu_us(self, group: str, side: str, batch: int) -> float | None:
        return self._median(group, side, batch, "cpu_us_per_example")

    def floor(self, group: str, batch: int) -> float | None:
        """The better way to do the products."""
        rates = [
            self.rate(group, side, batch)
            for side in self.groups.get(group, {})
            if side.startswith(PRODUCTS)
        ]
        return max((rate for rate in rates if rate is not None), default=None)

    def worker_bytes(self, group: str, side: str) -> int | None:
        found: int | None = self.groups.get(group, {}).get(side, {}).get("worker_bytes")
        return found or None

    def _median(self, group: str, side: str, batch: int, what: str) -> float | None:
        taken = [section[what] for section in self.sections(group, side, batch)]
        return statistics.median(taken) if taken else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """None where one of them is missing."""
    return ours / theirs if ours is not None and theirs else None
