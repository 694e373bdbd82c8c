"""The tables that bench/word2vec.py prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markdown_page import first_line, spread
from memory_table import COLUMNS, memory_rows


def told_sides(figures: Mapping[str, Any], batch: int) -> dict[str, dict[str, Any]]:
    """Return rates and CPU times of one batch size in the form of reports."""
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
    return {"title": COLUMNS[0], "columns": COLUMNS, "rows": memory_rows(figures)}
