"""The table at the end: what was trained and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.train.history import History
from sparsefleet.train.reading import describe_reading

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["summary_lines", "summary_table"]

_WORTH_SHOWING = 0.005

_MEANING = {
    "data": "waiting for batches",
    "pull": "waiting for rows",
    "compute": "forward, loss, backward",
    "push": "handing gradients over",
    "wait": "waiting for other threads or a full queue",
    "other": "counting, interpreter",
}


def summary_table(history: History) -> Table:
    """Shares of the time by what it went to."""
    from rich.table import Table

    table = Table(title="where the time went", title_justify="left")
    table.add_column("")
    table.add_column("share", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("what")
    for name, share in history.time_shares.shares().items():
        if name == "other" and share < _WORTH_SHOWING:
            continue
        seconds = getattr(history.time_shares, name)
        table.add_row(name, f"{100 * share:.1f} %", f"{seconds:.1f}", _MEANING[name])
    return table


def summary_lines(history: History) -> list[str]:
    """What was trained, what was read for it, and the bottleneck."""
    rate = history.examples / history.seconds if history.seconds > 0 else 0.0
    lines = [
        f"trained {history.examples:,} examples in {history.seconds:.1f} s ({rate:,.0f} a second)"
    ]
    skipped = sum(epoch.skipped for epoch in history.epochs)
    if skipped:
        lines.append(f"{skipped:,} batches were skipped: their loss was not finite")
    if history.reading is not None:
        lines.append(describe_reading(history.reading, history.seconds))
    return [*lines, f"bottleneck: {history.bottleneck}"]
