"""The cost of durable servers: CTR-DNN by mode, and how long a killed server takes to recover.

    python bench/durability.py [--quick] [--json FILE]

The rates of a mode's durability levels come from sections that take turns, as in bench/ctr_dnn.py.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ctr_rounds import RoundsConfig, run_rounds
from ctr_start import JOB_KEY, Sources, fleet
from measure import argument_parser, console, judge, machine, report, write_json
from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

LEVELS = ("off", "process", "disk")
MODES = ("sync", "async", "geo")
ROWS = (100_000, 1_000_000, 10_000_000)
DIM = 10
READY_S = 120.0
FILLED_AT_ONCE = 200_000


def training_rates(quick: bool, repeats: int, modes: tuple[str, ...]) -> dict[str, Any]:
    """Return examples/s by mode and level."""
    config = RoundsConfig(
        repeats=1 if quick else repeats,
        section_s=0.3 if quick else 0.8,
        warm_examples=2_000 if quick else 8_000,
    )
    figures: dict[str, Any] = {}
    for mode in modes:
        specs = [fleet(mode, durability=level) for level in LEVELS]
        with tempfile.TemporaryDirectory() as folder:
            figures |= run_rounds(specs, Sources(folder=Path(folder)), config)
    return figures


def report_rates(figures: dict[str, Any], modes: tuple[str, ...]) -> None:
    rows = []
    for mode in modes:
        for batch in ("1000", "100"):
            rates = {}
            for level in LEVELS:
                found = figures[fleet(mode, durability=level).name]
                sections = found["sections"].get(batch, [])
                rates[level] = (
                    statistics.median(s["examples_per_s"] for s in sections) if sections else 0.0
                )
            base = rates["off"] or 1.0
            shares = [f"{rates[level]:,.0f} ({rates[level] / base:.3f})" for level in LEVELS]
            rows.append([mode, batch, *shares])
    report("examples/s (share of off)", ["mode", "batch", *LEVELS], rows)


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
        "gap_max_s": max(gaps),
        "recovery_s": stats["log.recovery_s"],
        "snapshot_bytes": stats["log.snapshot_bytes"],
        "replayed_bytes": stats["log.replayed_bytes"],
    }


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--modes", default=",".join(MODES), help="a comma-separated list")
    parser.add_argument(
        "--rows", default=",".join(map(str, ROWS)), help="sizes of tables, separated by commas"
    )
    parser.add_argument("--only", choices=["rates", "recovery"], help="run only this part")
    options = parser.parse_args()
    console.print(machine())
    figures: dict[str, Any] = {}
    modes = tuple(options.modes.split(","))
    if options.only != "recovery":
        figures["rates"] = training_rates(options.quick, options.repeats, modes)
        report_rates(figures["rates"], modes)
    if options.only != "rates":
        sizes = [int(text) for text in options.rows.split(",")]
        found = [recovery(rows, 2 if options.quick else 5) for rows in sizes]
        figures["recovery"] = found
        report(
            "a killed server serves again after",
            ["rows", "p50", "max", "of it recovery", "snapshot", "log"],
            [
                [
                    f"{one['rows']:,.0f}",
                    f"{one['gap_p50_s']:.2f} s",
                    f"{one['gap_max_s']:.2f} s",
                    f"{one['recovery_s']:.2f} s",
                    f"{one['snapshot_bytes'] / 1e6:,.0f} MB",
                    f"{one['replayed_bytes'] / 1e6:,.0f} MB",
                ]
                for one in found
            ],
        )
        judge("recovery of the largest table within 2 s", found[-1]["recovery_s"] <= 2.0)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
