"""Parts of a Markdown page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

LONGEST_LINE = 160


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with the first column left-aligned and the others right-aligned."""
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, with minimum and maximum."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):,.{digits}f} .. {max(values):,.{digits}f})"


def first_line(text: str) -> str:
    """The first line of an error, short enough for a table."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
