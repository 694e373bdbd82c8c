"""The report of a day: machine, targets, and a section for each part that was run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from day_record import DayRecord
from markdown_page import first_line, table
from report_sections import SECTIONS
from targets import target_rows

QUICK = (
    "**A quick run with small sizes and few repeats: it shows that everything works; its "
    "figures are not measurements.**"
)
HOW = (
    "Medians, with minimum and maximum in brackets, of repeats in which all sides of a table "
    "took turns. docs/benchmarks.md describes the sides and how to run this."
)


def write_report(record: DayRecord, charts: Mapping[str, list[Path]]) -> Path:
    """Write the page next to the record; `charts` by part."""
    page = record.path.with_suffix(".md")
    blocks = [f"# Benchmarks of {record.day}", *_head(record), "## Targets", *_targets(record)]
    if summary := charts.get(""):
        blocks += _images(summary, page)
    for name, (title, make) in SECTIONS.items():
        if name not in record.parts:
            continue
        blocks.append(f"## {title}")
        entry = record.parts[name]
        if entry["error"]:
            blocks.append(f"No figures:\n\n```\n{entry['error'].strip()}\n```")
            continue
        blocks += _images(charts.get(name, []), page)
        blocks += make(entry["figures"])
    blocks += ["## How it was run", _runs(record)]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return page


def _head(record: DayRecord) -> list[str]:
    entries = list(record.parts.values())
    if not entries:
        return ["Nothing has been run yet."]
    blocks = [QUICK] if any(entry["quick"] for entry in entries) else []
    facts = {
        f"{entry['machine']}, {entry['memory_gb']:g} GB of memory, {entry['system']}; "
        + ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
        for entry in entries
    }
    return [*blocks, *sorted(facts), HOW]


def _runs(record: DayRecord) -> str:
    rows = []
    for name, entry in record.parts.items():
        outcome = f"{entry['took_s']:.0f} s, CPU {entry['cpu_s']:.0f} s"
        if entry["error"]:
            outcome = first_line(entry["error"])
        load = f"{entry['load']:.1f}"
        rows.append([name, f"`{entry['command']}`", entry["when"], entry["commit"], load, outcome])
    columns = ["part", "command", "when", "commit", "load before", "took"]
    return table(columns, rows)


def _targets(record: DayRecord) -> list[str]:
    rows = target_rows(record)
    verdicts = [verdict.is_met for row in rows for verdict in row.verdicts]
    counts = {value: sum(1 for found in verdicts if found is value) for value in (True, False)}
    open_ = sum(1 for row in rows for v in row.verdicts if v.target is not None and v.found is None)
    text = f"{counts[True]} met, {counts[False]} missed, {open_} not measured."
    columns = ["", "over PaddlePaddle 1.8.5", "over torch (on servers: DDP)", "of a ceiling"]
    missed = [
        f"- {row.work.partition(' (')[0]}: {row.account}"
        for row in rows
        if row.is_missed and row.account
    ]
    return [
        text,
        table(columns, [[row.work, *(v.text() for v in row.verdicts)] for row in rows]),
        *(
            ["Where the time or memory goes, for missed targets:", "\n".join(missed)]
            if missed
            else []
        ),
    ]


def _images(paths: list[Path], page: Path) -> list[str]:
    return [
        f"![{path.stem}]({os.path.relpath(path, page.parent).replace(os.sep, '/')})"
        for path in paths
    ]
