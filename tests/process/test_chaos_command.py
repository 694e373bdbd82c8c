"""`sparsefleet chaos` on its own job recovers from every fault, and the ledger is exact."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess

COMMAND = ("-m", "sparsefleet", "chaos")


@pytest.mark.job
@pytest.mark.skipif(sys.platform != "linux", reason="chaos needs Linux")
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("--mode", "sync", "--kill", "servers", "--seed", "2"), {"kill"}),
        (
            ("--api", "fluid", "--mode", "async", "--kill", "servers", "--partition"),
            {"kill", "partition"},
        ),
        (("--mode", "hybrid", "--disk-full", "--seed", "3"), {"disk-full"}),
        (("--mode", "geo", "--delay", "--seed", "4"), {"delay"}),
        (("--mode", "half_async", "--pause", "servers,workers", "--seed", "5"), {"pause"}),
    ],
    ids=[
        "torch-sync",
        "fluid-async",
        "torch-hybrid-disk",
        "torch-geo-delay",
        "torch-half_async-pause",
    ],
)
def test_faults_lose_no_record(tmp_path: Path, words: tuple[str, ...], kinds: set[str]) -> None:
    report = tmp_path / "report.json"
    size = ("--batches", "80", "--pace-ms", "50", "--every", "1s", "--for", "4s")
    times = ("--fault-time", "500ms", "--report", str(report))
    run = LaunchProcess(tmp_path, "--ledger", *words, *size, *times, command=COMMAND)
    try:
        assert run.wait() == 0, run.output()
    finally:
        run.close()
    found = json.loads(report.read_text())
    assert found["problems"] == []
    assert {fault["kind"] for fault in found["injected"]} == kinds
    assert found["ledger"]["records"] == 2 * 80 * 32
    assert set(found["ledger"]["counted"]) == {2 * 80 * 32}
    assert found["left"] == []
