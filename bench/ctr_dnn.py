"""CTR-DNN end to end: ours, PaddlePaddle 1.8.5, plain torch, DDP, and its matrix products alone.

    python bench/ctr_dnn.py [--groups local,rounds] [--quick] [--repeats 5] [--json FILE]

Examples are parsed and in memory; in group `files` they come from MultiSlot files through a
Dataset. A section starts and ends together on all processes of a side, without start-up, and ends
only when everything handed over has been applied. The sides of a group take turns, one section per
round. The floor is the better of two processes with one thread each and one process with two.
Servers share the cores with the workers. Rates are summed over all workers; CPU times and memory
over all processes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr_files import drawn_files
from ctr_groups import GROUPS, QUICK_SIDES
from ctr_names import PRODUCTS
from ctr_rounds import RoundsConfig, run_rounds
from ctr_start import Sources
from measure import argument_parser, console, machine, report, write_json
from paddle_environment import find_paddle

NUM_FILES = 2
LINES = {False: 10_000, True: 2_000}
PADDLE_LINES = {False: 6_000, True: 1_000}
"""Examples per file, by --quick: Paddle trains on all its files in each section."""


def rounds_config(options: argparse.Namespace) -> RoundsConfig:
    if options.quick:
        return RoundsConfig(repeats=1, section_s=0.2, warm_examples=2_000)
    return RoundsConfig(repeats=options.repeats, section_s=0.8, warm_examples=8_000)


def measure_group(
    name: str, folder: Path, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return the figures of each side of the group."""
    paddle, missing = find_paddle(may_install=not options.quick)
    sources = Sources(
        folder=folder,
        files=drawn_files(folder, "part", NUM_FILES, LINES[options.quick]),
        paddle_files=drawn_files(folder, "paddle", NUM_FILES, PADDLE_LINES[options.quick]),
        paddle=paddle,
        paddle_missing=missing,
    )
    specs = [spec for spec in GROUPS[name] if not options.quick or spec.name in QUICK_SIDES[name]]
    return run_rounds(specs, sources, rounds_config(options))


def report_group(name: str, figures: Mapping[str, Any], batches: Sequence[int]) -> None:
    """Return one row per side and batch size: its rate, its share of the floor, its CPU time."""
    for batch in batches:
        rates = {
            side: [one["examples_per_s"] for one in of_side["sections"].get(str(batch), [])]
            for side, of_side in figures.items()
        }
        floors = [statistics.median(r) for s, r in rates.items() if s.startswith(PRODUCTS) and r]
        rows = []
        for side, found in rates.items():
            if not found:
                rows.append([side, figures[side]["error"].splitlines()[0][:40], "", "", ""])
                continue
            sections = figures[side]["sections"][str(batch)]
            cpu_us = statistics.median(one["cpu_us_per_example"] for one in sections)
            spread = f"{min(found):,.0f} .. {max(found):,.0f}"
            share = f"{statistics.median(found) / max(floors):.0%}" if floors else ""
            rows.append([side, f"{statistics.median(found):,.0f}", spread, f"{cpu_us:.1f}", share])
        columns = ["", "examples/s", "range", "CPU us/example", "of floor"]
        report(f"{name}, batch {batch:,}", columns, rows)


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--groups", default=",".join(GROUPS), help="a comma-separated list")
    options = parser.parse_args()
    console.print("[bold]CTR-DNN[/bold]: 26 slots x 10, 400-400-400-2, SGD.")
    console.print(machine())
    figures = {}
    for name in options.groups.split(","):
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measure_group(name, Path(folder), options)
        report_group(name, figures[name], rounds_config(options).batches)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
