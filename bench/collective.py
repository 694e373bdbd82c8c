"""Collective training: plain DDP, and ours fused, unfused, hierarchical, LocalSGD, bfloat16.

    python bench/collective.py [--sides ddp,fused] [--quick] [--repeats 5] [--json FILE]

Two models, an MLP for MNIST (784-200-200-10, 64 examples per rank and step) and the dense part of
CTR-DNN (273-400-400-400-2, 100 examples), SGD, batches in memory, one thread per rank. Ranks run on
two nodes, one on each, or two each for 2x2. A node is a network namespace. The wire between them,
bench/delaying_wire.py, delays every packet by 0, 1 or 5 ms each way; ranks on the same node do not
use it. All sides of a rank share one process and take turns, one section per round. Bytes are
counted by the namespaces' devices, so they include headers, acknowledgements and heartbeats.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collective_names import DELAYS_MS, MODELS, WANTED
from collective_nodes import Network, Ranks, Section, speed_ratio
from collective_sides import QUICK_SIDES, SIDES
from ctr_names import OURS, TORCH
from markdown_page import spread
from measure import argument_parser, console, machine, note, report, write_json

ROUND_STEPS = 8
"""Sections have a multiple of this many steps, so that every LocalSGD side ends one with an
exchange.
"""

Cell = tuple[str, int, str]
"""Model, delay in ms, side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How much is measured."""

    sides: tuple[str, ...]
    models: tuple[str, ...]
    delays_ms: tuple[int, ...]
    repeats: int
    section_s: float

    def cells(self) -> Iterator[Cell]:
        for delay_ms in self.delays_ms:
            for model in self.models:
                for side in self.sides:
                    yield model, delay_ms, side


@dataclass(slots=True)
class Measured:
    """The sections of each cell, and errors by number of ranks."""

    sections: dict[Cell, list[Section]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def ratio(self, cell: Cell, side: str) -> float | None:
        """Return the speed relative to another side; None if either was not measured."""
        ours, theirs = self.sections.get(cell), self.sections.get((*cell[:2], side))
        if not ours or not theirs or len(ours) != len(theirs):
            return None
        return speed_ratio(ours, theirs)


def measure(plan: Plan, network: Network, folder: Path) -> Measured:
    """Run all sides in turn; ranks that fail are reported, and the others continue."""
    measured = Measured()
    with contextlib.ExitStack() as stack:
        ranks: dict[int, Ranks] = {}
        for size in sorted({SIDES[side].size for side in plan.sides}):
            ranks[size] = Ranks(size, network, folder / "ranks")
            stack.callback(_close, ranks, size)
        for size in list(ranks):
            with _told(measured, ranks, size):
                ranks[size].wait_ready()
        steps: dict[Cell, int] = {}
        # Two warm-up sections; the second determines the number of steps.
        for number in range(-2, plan.repeats):
            for cell in plan.cells():
                _take_section(cell, number, steps, plan, network, ranks, measured)
            console.print(f"  round {number + 3} of {plan.repeats + 2}", highlight=False)
    return measured


def _take_section(
    cell: Cell,
    number: int,
    steps: dict[Cell, int],
    plan: Plan,
    network: Network,
    ranks: dict[int, Ranks],
    measured: Measured,
) -> None:
    model, delay_ms, side = cell
    size = SIDES[side].size
    if size not in ranks:
        return
    with _told(measured, ranks, size):
        network.delay(delay_ms / 1e3)
        section = ranks[size].run(side, model, steps.get(cell, ROUND_STEPS))
        if number == -1:
            wanted = plan.section_s * 1e3 / section.ms / ROUND_STEPS
            steps[cell] = ROUND_STEPS * max(1, round(wanted))
        elif number >= 0:
            measured.sections.setdefault(cell, []).append(section)


def _close(ranks: dict[int, Ranks], size: int) -> None:
    if (one := ranks.pop(size, None)) is not None:
        one.close()


@contextlib.contextmanager
def _told(measured: Measured, ranks: dict[int, Ranks], size: int) -> Iterator[None]:
    """Record an error and end these ranks."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        measured.errors[size] = f"{type(error).__name__}: {error}"
        console.print(f"  {size} ranks: {measured.errors[size]}", style="red", markup=False)
        ranks.pop(size).close(kill=True)


def tables_of(plan: Plan, measured: Measured) -> list[dict[str, Any]]:
    """One table per model: time by delay, then bytes and CPU time, which hardly depend on it."""
    columns = ["", *(f"ms, {delay_ms} ms delay" for delay_ms in plan.delays_ms)]
    columns += ["KB sent", "KB between nodes", "CPU us"]
    tables = []
    for model in plan.models:
        rows = []
        for side in plan.sides:
            spec = SIDES[side]
            cells = [measured.sections.get((model, d, side)) for d in plan.delays_ms]
            if not all(cells):
                error = measured.errors.get(spec.size, "")
                rows.append([spec.title, error[:60], *[""] * (len(columns) - 2)])
                continue
            told = [spread([one.ms for one in cell], 2) for cell in cells if cell]
            first = cells[0] or []
            for what in ("sent_kb", "across_kb", "cpu_us"):
                told.append(f"{statistics.median(getattr(one, what) for one in first):,.0f}")
            rows.append([spec.title, *told])
        title = f"{MODELS[model]}, a step"
        tables.append({"title": title, "columns": columns, "rows": rows})
    return tables


def sides_of(plan: Plan, measured: Measured) -> dict[str, dict[str, Any]]:
    """Steps per second of the last model at the longest delay, for the chart of the report."""
    model, delay_ms = plan.models[-1], plan.delays_ms[-1]
    sides = {}
    for side in plan.sides:
        spec = SIDES[side]
        title = spec.title.removeprefix(f"{TORCH} ")
        engine = OURS if spec.strategy is not None else TORCH
        taken = measured.sections.get((model, delay_ms, side), [])
        sides[f"{engine} {title}, {delay_ms} ms"] = {
            "rate": [1e3 / one.ms for one in taken],
            "unit": f"steps/s ({MODELS[model]})",
            "cpu_us": [one.cpu_us for one in taken],
            "error": None if taken else measured.errors.get(spec.size, "not measured"),
        }
    return sides


def ratios_of(plan: Plan, measured: Measured) -> dict[str, float]:
    """Return the speed ratios by key, without those that were not measured."""
    ratios = {}
    for wanted in WANTED:
        for model in plan.models:
            for delay_ms in wanted.delays_ms:
                found = measured.ratio((model, delay_ms, wanted.side), wanted.other)
                if found is not None:
                    ratios[wanted.key(model, delay_ms)] = found
    return ratios


def notes_of(ratios: Mapping[str, float], why_not: str | None) -> list[str]:
    """Print what was measured and the target, one line each."""
    notes = []
    for wanted in WANTED:
        sides = f"{SIDES[wanted.side].title} over {SIDES[wanted.other].title}"
        for model, title in MODELS.items():
            keys = {delay_ms: wanted.key(model, delay_ms) for delay_ms in wanted.delays_ms}
            found = {delay_ms: ratios[key] for delay_ms, key in keys.items() if key in ratios}
            if found:
                told = ", ".join(f"{r:.2f}x at {delay_ms} ms" for delay_ms, r in found.items())
                verdict = "met" if min(found.values()) >= wanted.target else "missed"
                notes.append(f"{title}, {sides}: {told} (>= {wanted.target:g}x: {verdict})")
    return [*notes, *([why_not] if why_not else [])]


def plan_of(options: argparse.Namespace, network: Network) -> Plan:
    delays_ms = DELAYS_MS if network.why_not is None else DELAYS_MS[:1]
    if options.quick:
        return Plan(
            sides=options.sides or QUICK_SIDES,
            models=("mnist",),
            delays_ms=tuple(sorted({delays_ms[0], delays_ms[-1]})),
            repeats=1,
            section_s=0.1,
        )
    return Plan(
        sides=options.sides or tuple(SIDES),
        models=tuple(MODELS),
        delays_ms=delays_ms,
        repeats=options.repeats,
        section_s=0.4,
    )


def known_sides(text: str) -> tuple[str, ...]:
    sides = tuple(text.split(","))
    if unknown := [side for side in sides if side not in SIDES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    return sides


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--sides", type=known_sides, help="a comma-separated list")
    options = parser.parse_args()
    console.print("[bold]Collective training[/bold]")
    console.print(machine())
    network = Network()
    with contextlib.closing(network), tempfile.TemporaryDirectory() as folder:
        plan = plan_of(options, network)
        measured = measure(plan, network, Path(folder))
    tables, ratios = tables_of(plan, measured), ratios_of(plan, measured)
    notes = notes_of(ratios, network.why_not)
    for one in tables:
        report(one["title"], one["columns"], one["rows"])
    for text in notes:
        note(text)
    figures = {"sides": sides_of(plan, measured), "tables": tables}
    write_json(options.json, {**figures, "ratios": ratios, "notes": notes})


if __name__ == "__main__":
    main()
