"""Processes started by torchrun act as workers of running servers, and train every record once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

LEDGER = ("--batches=20", "--pace-ms=0", "--mode=async")
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run_ledger(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = ("-m", "sparsefleet.cli.ledger", f"--out={directory}", *LEDGER)
    return subprocess.run(
        [sys.executable, "-m", *TORCHRUN, *script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.job
def test_workers_of_torchrun_train_on_named_servers(tmp_path: Path) -> None:
    server = ServerProcess()
    try:
        done = run_ledger(tmp_path, SPARSEFLEET_SERVERS=server.wait_ready())
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (2 * 20 * 32, 0, 0)


@pytest.mark.job
def test_torchrun_without_servers_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    done = run_ledger(tmp_path)
    assert done.returncode != 0
    assert "torchrun has started 2 processes but no servers" in done.stderr
