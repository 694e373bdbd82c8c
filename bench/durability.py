"""The cost of durable servers: CTR-DNN by mode, and how long a killed server takes to recover.

    python bench/durability.py [--quick] [--json FILE]

The rates of a mode's durability levels come from sections that take turns, as in bench/ctr_dnn.py.
With "replica" both servers have one replica, on this machine; its CPU time counts as theirs.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr_rounds import RoundsConfig, run_rounds
from ctr_start import JOB_KEY, Sources, fleet, start
from measure import argument_parser, console, judge, machine, report, write_json
from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

LEVELS = ("off", "process", "disk", "replica")
MODES = ("sync", "async", "geo")
ROWS = (100_000, 1_000_000, 10_000_000)
DIM = 10
READY_S = 120.0
FILLED_AT_ONCE = 200_000
# Twice this many examples pass before the first section of each batch size. With batches of 100
# they make a gigabyte of log per server: a log costs more until its first snapshots leave files
# that it can reuse.
WARM_EXAMPLES = 60_000


def training_rates(
    quick: bool, repeats: int, modes: tuple[str, ...], levels: Sequence[str]
) -> dict[str, Any]:
    """Return examples/s by mode and level."""
    config = RoundsConfig(
        repeats=1 if quick else repeats,
        section_s=0.3 if quick else 0.8,
        warm_examples=2_000 if quick else WARM_EXAMPLES,
    )
    figures: dict[str, Any] = {}
    for mode in modes:
        specs = [fleet(mode, durability=level) for level in levels]
        with tempfile.TemporaryDirectory() as folder:
            figures |= run_rounds(specs, Sources(folder=Path(folder)), config)
    return figures


def report_rates(figures: dict[str, Any], modes: tuple[str, ...], levels: Sequence[str]) -> None:
    for figure, unit in (
        ("examples_per_s", "examples/s"),
        ("cpu_us_per_example", "CPU us/example"),
    ):
        rows = []
        for mode in modes:
            for batch in ("1000", "100"):
                found = {level: _median(figures, mode, level, batch, figure) for level in levels}
                base = found["off"] or 1.0
                rows.append([mode, batch, *(f"{n:,.1f} ({n / base:.3f})" for n in found.values())])
        report(f"{unit} (share of off)", ["mode", "batch", *levels], rows)
    for mode in modes:
        for batch, allowed in (("1000", 0.95), ("100", 0.90)):
            rates = {
                level: _median(figures, mode, level, batch, "examples_per_s") for level in levels
            }
            share = rates.get("process", 0.0) / (rates["off"] or 1.0)
            judge(f"{mode}, batch {batch}: process has {allowed:.0%} of off", share >= allowed)


def _median(figures: dict[str, Any], mode: str, level: str, batch: str, figure: str) -> float:
    sections = figures[fleet(mode, durability=level).name]["sections"].get(batch, [])
    return statistics.median(section[figure] for section in sections) if sections else 0.0


def log_bytes(mode: str, batch: int) -> float:
    """Return the bytes of log per example, of both servers together."""
    steps = 40 if mode != "geo" else 400
    with tempfile.TemporaryDirectory() as folder:
        one = start(fleet(mode, durability="process"), Sources(folder=Path(folder)))
        try:
            with RemoteStore(one.side.endpoints, job_key=JOB_KEY.encode()) as store:
                before = sum(stats["log.bytes"] for stats in store.stats())
                examples = steps * batch * one.side.num_workers
                one.side.run(batch, examples)
                after = sum(stats["log.bytes"] for stats in store.stats())
        finally:
            one.side.close()
    return float(after - before) / examples


class KilledServer:
    """A `sparsefleet server` that is killed and restarted."""

    def __init__(self, place: Path, level: str) -> None:
        self._place, self._level = place, level
        self._process, self.endpoint = self._start("127.0.0.1:0")

    def _start(self, endpoint: str) -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-m", "sparsefleet", "server", "--endpoint", endpoint]
        words += ["--durability", self._level, "--log-dir", str(self._place)]
        process = subprocess.Popen(
            [*words, "--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SPARSEFLEET_JOB_KEY": JOB_KEY},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        return process, line.split("listening on ")[1].split()[0]

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(READY_S)

    def restart(self) -> None:
        self._process, _ = self._start(self.endpoint)


def recovery(rows: int, repeats: int) -> dict[str, float]:
    """Return the seconds from the start of a successor until it has answered a push."""
    spec = TableSpec(name="t", dim=DIM, optimizer=optim.Adagrad(lr=0.1), initializer=Constant(0.0))
    with tempfile.TemporaryDirectory() as folder:
        server = KilledServer(Path(folder) / "log", "process")
        config = RemoteStoreConfig(timeout_s=READY_S, failover_wait_s=READY_S)
        key = JOB_KEY.encode()
        try:
            with RemoteStore([server.endpoint], job_key=key, config=config) as store:
                store.define(spec)
                for begin in range(0, rows, FILLED_AT_ONCE):
                    keys = np.arange(begin, min(begin + FILLED_AT_ONCE, rows))
                    store.push("t", keys, np.ones((len(keys), DIM), np.float32), unique=True)
                gaps = []
                for _ in range(repeats):
                    server.kill()
                    begun = time.monotonic()
                    server.restart()
                    store.push("t", np.arange(1000), np.ones((1000, DIM), np.float32))
                    gaps.append(time.monotonic() - begun)
                stats = store.stats()[0]
        finally:
            server.kill()
    return {
        "rows": rows,
        "gap_p50_s": statistics.median(gaps),
        "gap_p99_s": float(np.quantile(gaps, 0.99)),
        "recovery_s": stats["log.recovery_s"],
        "snapshot_bytes": stats["log.snapshot_bytes"],
        "replayed_bytes": stats["log.replayed_bytes"],
    }


def report_recovery(found: Sequence[dict[str, float]]) -> None:
    report(
        "a killed server serves again after",
        ["rows", "p50", "p99", "of it recovery", "snapshot", "log"],
        [
            [
                f"{one['rows']:,.0f}",
                f"{one['gap_p50_s']:.2f} s",
                f"{one['gap_p99_s']:.2f} s",
                f"{one['recovery_s']:.2f} s",
                f"{one['snapshot_bytes'] / 1e6:,.0f} MB",
                f"{one['replayed_bytes'] / 1e6:,.0f} MB",
            ]
            for one in found
        ],
    )
    for one in found:
        judge(f"{one['rows']:,.0f} rows: gap p99 within 2 s", one["gap_p99_s"] <= 2.0)


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--modes", default=",".join(MODES), help="a comma-separated list")
    parser.add_argument(
        "--rows", default=",".join(map(str, ROWS)), help="sizes of tables, separated by commas"
    )
    parser.add_argument("--levels", default=",".join(LEVELS), help="a comma-separated list")
    parser.add_argument("--only", choices=["rates", "bytes", "recovery"], help="run only this part")
    options = parser.parse_args()
    console.print(machine())
    figures: dict[str, Any] = {}
    modes = tuple(options.modes.split(","))
    levels = ("off", *(level for level in options.levels.split(",") if level != "off"))
    if options.only in (None, "rates"):
        figures["rates"] = training_rates(options.quick, options.repeats, modes, levels)
        report_rates(figures["rates"], modes, levels)
    if options.only in (None, "bytes"):
        figures["log_bytes"] = {
            mode: {str(batch): log_bytes(mode, batch) for batch in (1000, 100)} for mode in modes
        }
        report(
            "log bytes per example",
            ["mode", "batch 1000", "batch 100"],
            [[mode, *(f"{n:,.0f}" for n in figures["log_bytes"][mode].values())] for mode in modes],
        )
    if options.only in (None, "recovery"):
        sizes = [int(text) for text in options.rows.split(",")]
        figures["recovery"] = [recovery(rows, 3 if options.quick else 10) for rows in sizes]
        report_recovery(figures["recovery"])
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
