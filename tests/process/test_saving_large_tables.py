"""Workers save and load tables on servers that they could not hold in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.server_process import ServerProcess

SCRIPT = Path(__file__).with_name("limited_worker.py")
DEADLINE_S = 300.0
HEADROOM_BYTES = 64 << 20
ROW_BYTES = 8 + 4 * (64 + 64)  # key, values and Adagrad's state


def run_worker(action: str, servers: list[ServerProcess], num_rows: int, *folders: Path) -> Any:
    """What the limited worker reports."""
    endpoints = ",".join(server.wait_ready() for server in servers)
    # Threads of numeric libraries, each with its own heap, would reserve address space that nothing
    # uses.
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    ended = subprocess.run(
        [sys.executable, SCRIPT, action, endpoints, str(num_rows), str(HEADROOM_BYTES), *folders],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.job
def test_a_table_four_times_larger_than_the_memory_of_a_worker_is_saved_and_loaded(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    num_rows = 4 * HEADROOM_BYTES // ROW_BYTES + 1
    folders = (tmp_path / "by servers", tmp_path / "one file per variable")
    first = [start_server("--index", str(i), "--num-servers", "2") for i in range(2)]
    saved = run_worker("save", first, num_rows, *folders)
    for server in first:
        server.kill()
    assert saved["digest"][0] >= num_rows
    assert saved["table_bytes"] > 4 * HEADROOM_BYTES
    assert (folders[0] / "rows" / "manifest.json").is_file()
    assert (folders[1] / "rows").stat().st_size > 4 * HEADROOM_BYTES

    others = [start_server("--index", str(i), "--num-servers", "3") for i in range(3)]
    loaded = run_worker("load", others, num_rows, *folders)
    for folder in folders:
        assert loaded[str(folder)] == pytest.approx(saved["digest"], rel=1e-9)
