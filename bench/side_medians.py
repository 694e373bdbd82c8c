"""Medians from a day's record, by group, side and batch size; None for what was not measured."""

from __future__ import annotations

import statistics
from typing import Any

from ctr_names import DENSE, PRODUCTS
from day_record import DayRecord

GROUPS = ("local", "rounds", "background", "files")
BATCHES = (1000, 100)


class SideMedians:
    """The medians of CTR-DNN, whose groups are parts of the record."""

    def __init__(self, record: DayRecord) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self._machines: dict[str, str] = {}
        for group in GROUPS:
            if (figures := record.figures(f"ctr-{group}")) is not None:
                self.groups[group] = figures[group]
                self._machines[group] = record.parts[f"ctr-{group}"]["machine"]

    def machine(self, group: str) -> str:
        """Return the line about the machine that the group was measured on."""
        return self._machines.get(group, "")

    def sections(self, group: str, side: str, batch: int) -> list[dict[str, float]]:
        of_side = self.groups.get(group, {}).get(side, {})
        found: list[dict[str, float]] = of_side.get("sections", {}).get(str(batch), [])
        return found

    def rate(self, group: str, side: str, batch: int) -> float | None:
        return self._median(group, side, batch, "examples_per_s")

    def cpu_us(self, group: str, side: str, batch: int) -> float | None:
        return self._median(group, side, batch, "cpu_us_per_example")

    def server_cpu_us(self, group: str, side: str, batch: int) -> float | None:
        return self._median(group, side, batch, "server_cpu_us_per_example")

    def floor(self, group: str, batch: int) -> float | None:
        """Return the rate of the faster way to compute the products."""
        return self._best_products(group, batch)[0]

    def floor_cpu_us(self, group: str, batch: int) -> float | None:
        """Return the CPU time of the faster way to compute the products."""
        return self._best_products(group, batch)[1]

    def ceiling(self, group: str, batch: int, processes: int) -> float | None:
        """Return the rate of torch's own dense step in that many processes of one thread."""
        return self.rate(group, f"{DENSE} {processes}x1", batch)

    def worker_bytes(self, group: str, side: str) -> int | None:
        found: int | None = self.groups.get(group, {}).get(side, {}).get("worker_bytes")
        return found or None

    def _best_products(self, group: str, batch: int) -> tuple[float | None, float | None]:
        """Return rate and CPU time of the faster way."""
        sides = [side for side in self.groups.get(group, {}) if side.startswith(PRODUCTS)]
        found = [(self.rate(group, s, batch), self.cpu_us(group, s, batch)) for s in sides]
        return max(
            (one for one in found if one[0] is not None),
            key=lambda one: one[0] or 0.0,
            default=(None, None),
        )

    def _median(self, group: str, side: str, batch: int, what: str) -> float | None:
        taken = [section[what] for section in self.sections(group, side, batch)]
        return statistics.median(taken) if taken else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return the ratio; None if either is missing."""
    return ours / theirs if ours is not None and theirs else None
