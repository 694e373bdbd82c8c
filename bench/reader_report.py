"""Tables and verdicts of bench/reader.py: on the terminal, and as Markdown for bench/results/."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from measure import console, machine, report


class Report:
    """Shows each part when it comes and keeps it."""

    def __init__(self, title: str, about: str) -> None:
        console.print(f"[bold]{title}[/bold]: {about}. {machine()}")
        day = time.strftime("%Y-%m-%d")
        self._parts = [f"# {day}: {title}", f"{about}. {machine()}. Load at the start {_load()}."]

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        report(title, columns, rows)
        lines = [f"| {' | '.join([title, *columns[1:]])} |"]
        lines.append("|---|" + "---:|" * (len(columns) - 1))
        lines += [f"| {' | '.join(row)} |" for row in rows]
        self._parts.append("\n".join(lines))

    def judge(self, text: str, holds: bool) -> None:
        """A target, with what was measured, and whether it was met."""
        verdict = "met" if holds else "missed"
        colour = "green" if holds else "red"
        console.print(f"  {text} [{colour}]{verdict}[/{colour}]", highlight=False)
        self._append(f"- {text} **{verdict}**")

    def note(self, text: str) -> None:
        console.print(f"  {text}", highlight=False, markup=False)
        self._append(f"- {text}")

    def save(self, path: Path) -> None:
        """Writes all of it."""
        self._parts.append(f"Load at the end {_load()}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(self._parts) + "\n")
        console.print(f"written to {path}")

    def _append(self, item: str) -> None:
        """Items of a list go together."""
        if self._parts[-1].startswith("- "):
            self._parts[-1] += f"\n{item}"
        else:
            self._parts.append(item)


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())
