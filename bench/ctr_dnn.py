"""CTR-DNN end to end, as a share of what its matrix products alone reach on the same cores.

    make bench            or    python bench/ctr_dnn.py [--quick] [--repeats 5] [--json FILE]

Batches lie parsed in memory. A section begins and ends together on all processes of a side,
start-up excluded; what was handed over must have been applied. Every side runs its section once
a round, in turn. The floor is the better of two processes with a thread each, and of one with
two. The servers share the cores with the workers.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from measure import console, machine, parse_arguments, report, write_json
from side_processes import Section, Side, SideProcess, start_servers

MODES = ("sync", "half_async", "async", "geo", "hybrid")
NUM_SERVERS = 2
NUM_WORKERS = 2
NUM_THREADS = 2
TRANSPORT = "tls"
SECTION_EXAMPLES = {1000: 120_000, 100: 60_000}
QUICK_EXAMPLES = 4_000
TARGETS = {"local": {1000: 0.85, 100: 0.70}, "fleet": {1000: 0.75, 100: 0.55}}
PROGRAM = Path(__file__).resolve().parent / "ctr_sides.py"
JOB_KEY = os.urandom(32).hex()


def start_side(name: str, batch: int, examples: int) -> Side:
    """The processes of a side; ready some time later."""
    kind, _, how = name.partition(" ")
    words = ["--batch", str(batch), "--examples", str(examples)]
    if kind == "fleet":
        return start_fleet(how, words)
    processes, threads = {"products 2x1": (2, 1)}.get(name, (1, NUM_THREADS))
    return Side([start_worker(kind, words, rank, processes, threads) for rank in range(processes)])


def start_worker(
    kind: str,
    words: list[str],
    rank: int,
    processes: int,
    threads: int,
    environ: Mapping[str, str] | None = None,
) -> SideProcess:
    place = ["--rank", str(rank), "--processes", str(processes), "--threads", str(threads)]
    return SideProcess([sys.executable, str(PROGRAM), kind, *words, *place], environ or {})


def start_fleet(mode: str, words: list[str]) -> Side:
    servers, endpoints = start_servers(NUM_SERVERS, TRANSPORT, JOB_KEY)
    workers = []
    for rank in range(NUM_WORKERS):
        environ = {
            "SPARSEFLEET_JOB_KEY": JOB_KEY,
            "SPARSEFLEET_ROLE": "worker",
            "SPARSEFLEET_INDEX": str(rank),
            "SPARSEFLEET_SERVERS": ",".join(endpoints),
            "SPARSEFLEET_WORKERS": str(NUM_WORKERS),
            "SPARSEFLEET_TRANSPORT": TRANSPORT,
        }
        flags = [*words, "--mode", mode]
        workers.append(start_worker("fleet", flags, rank, NUM_WORKERS, 1, environ))
    return Side(workers, servers)


def measure(names: list[str], batch: int, examples: int, repeats: int) -> dict[str, list[Section]]:
    """All sections of all sides; the first round warms and is not kept."""
    taken: dict[str, list[Section]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        sides = {}
        for name in names:  # one after the other: they would keep each other from starting
            sides[name] = stack.enter_context(start_side(name, batch, examples))
            sides[name].wait_ready()
        for side in sides.values():
            side.run()
        for _ in range(repeats):
            for name, side in sides.items():
                taken[name].append(side.run())
    return taken


def report_batch(batch: int, taken: Mapping[str, list[Section]]) -> None:
    """A line a side: its rate, its share of the floor and whether that is what was aimed at."""
    rates = {n: [s.examples_per_s for s in sections] for n, sections in taken.items()}
    floor = max(statistics.median(r) for n, r in rates.items() if n.startswith("products"))
    rows = []
    for name, of_side in rates.items():
        share = statistics.median(of_side) / floor
        target = TARGETS.get(name.split()[0], {}).get(batch)
        verdict = "" if target is None else f">= {target:.0%} " + met(share >= target)
        cpu = statistics.median(section.cpu_us_per_example for section in taken[name])
        servers = statistics.median(section.server_cpu_us_per_example for section in taken[name])
        spread = f"{min(of_side):,.0f} .. {max(of_side):,.0f}"
        median = f"{statistics.median(of_side):,.0f}"
        rows.append([name, median, spread, f"{cpu:.1f}", f"{servers:.1f}", f"{share:.0%}", verdict])
    columns = ["", "examples/s", "range", "CPU us/example", "of servers", "of floor", "target"]
    report(f"batch {batch:,}", columns, rows)


def met(is_met: bool) -> str:
    return "[green]met[/green]" if is_met else "[red]missed[/red]"


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    names = ["products 2x1", "products 1x2", "torch 1x2", "local 1x2"]
    names += [f"fleet {mode}" for mode in MODES]
    shape = f"{NUM_SERVERS} servers x {NUM_WORKERS} workers, {TRANSPORT}"
    console.print(f"[bold]CTR-DNN[/bold]: 26 slots x 10, 400-400-400-2, SGD; {shape}. {machine()}")
    figures: dict[str, object] = {}
    for batch, examples in SECTION_EXAMPLES.items():
        size = QUICK_EXAMPLES if arguments.quick else examples
        taken = measure(names, batch, size, arguments.repeats)
        report_batch(batch, taken)
        figures[str(batch)] = {
            name: [[s.examples_per_s, s.cpu_us_per_example] for s in sections]
            for name, sections in taken.items()
        }
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
