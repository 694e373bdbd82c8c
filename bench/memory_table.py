"""Start-up time and memory of the sides of a benchmark, as returned by `ctr_rounds.run_rounds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctr_names import DENSE, PRODUCTS

MIB = 1 << 20
COLUMNS = ["start-up and memory", "ready after s", "worker, MiB", "server, MiB"]


def memory_rows(sides: Mapping[str, Any]) -> list[list[str]]:
    """One row per side that completed; products and layers alone have nothing to start."""
    return [
        [
            name,
            f"{one['startup_s']:.1f}",
            f"{one['worker_bytes'] / MIB:,.0f}",
            f"{one['server_bytes'] / MIB:,.0f}" if one["server_bytes"] else "",
        ]
        for name, one in sides.items()
        if not one["error"] and not name.startswith((PRODUCTS, DENSE))
    ]
