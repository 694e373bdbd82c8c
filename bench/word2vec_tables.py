"""What bench/word2vec.py tells of the figures of its sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctr_names import PRODUCTS
from markdown_page import first_line, spread


def told_sides(figures: Mapping[str, Any], batch: int) -> dict[str, dict[str, Any]]:
    """Rates and CPU times of one batch size, as reports of sides want them."""
    told = {}
    for name, of_side in figures.items():
        sections = of_side["sections"].get(str(batch), [])
        told[name] = {
            "rate": [one["examples_per_s"] for one in sections],
            "unit": "pairs/s",
            "cpu_us": [one["cpu_us_per_example"] for one in sections],
            "error": of_side["error"] if not sections else None,
        }
    return told


def rate_table(title: str, sides: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [name, first_line(one["error"]), ""]
        if one["error"]
        else [name, spread(one["rate"]), spread(one["cpu_us"], 2)]
        for name, one in sides.items()
    ]
    return {"title": title, "columns": [title, "pairs/s", "CPU us/pair"], "rows": rows}


def memory_table(figures: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [
            name,
            f"{of_side['startup_s']:.1f}",
            f"{of_side['worker_bytes'] >> 20:,}",
            f"{of_side['server_bytes'] >> 20:,}" if of_side["server_bytes"] else "",
        ]
        for name, of_side in figures.items()
        if not of_side["error"] and not name.startswith(PRODUCTS)
    ]
    title = "start-up and memory"
    return {
        "title": title,
        "columns": [title, "ready after s", "worker, MiB", "server, MiB"],
        "rows": rows,
    }
