"""What a worker stores about the round it is sending, for its successor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsefleet.modes.round_outbox import RoundOutbox

MARKS = [(0, 1, 2, 3)]


def test_gradients_come_back_bit_by_bit_in_another_process_s_object(tmp_path: Path) -> None:
    keys, rows = np.array([5, 9], np.uint64), np.random.default_rng(0).random((2, 3), np.float32)
    parts = [np.ones((2, 3), np.float32), np.arange(4, dtype=np.float32)]
    whole = np.linspace(0, 1, 7, dtype=np.float32)
    path = str(tmp_path / "outbox")
    RoundOutbox(path).put(7, [({"t": (keys, rows)}, {"parts": parts, "whole": whole})], MARKS)
    found = RoundOutbox(path).find(7)
    assert found is not None
    [(sparse, dense)], marks = found
    np.testing.assert_array_equal(sparse["t"][0], keys)
    np.testing.assert_array_equal(sparse["t"][1], rows)
    np.testing.assert_array_equal(dense["parts"], np.concatenate([p.ravel() for p in parts]))
    np.testing.assert_array_equal(dense["whole"], whole)
    assert marks == MARKS


def test_a_round_that_was_replaced_or_is_torn_is_not_found(tmp_path: Path) -> None:
    path = str(tmp_path / "outbox")
    outbox = RoundOutbox(path)
    outbox.put(7, [({}, {"d": np.ones(3, np.float32)})], MARKS)
    outbox.put(8, [({}, {"d": np.ones(3, np.float32)})], MARKS)
    assert RoundOutbox(path).find(7) is None
    with open(path, "r+b") as file:
        file.write(b"\0" * 8)  # as while the next round is being written
    assert RoundOutbox(path).find(8) is None


def test_close_removes_the_file(tmp_path: Path) -> None:
    outbox = RoundOutbox(str(tmp_path / "outbox"))
    outbox.put(1, [({}, {"d": np.ones(3, np.float32)})], MARKS)
    outbox.close()
    assert list(tmp_path.iterdir()) == []


SMALL_MEMORY = """
import numpy as np
from sparsefleet.errors import DiskFullError
from sparsefleet.modes.round_outbox import RoundOutbox

outbox = RoundOutbox("outbox")
outbox.put(1, [({}, {"d": np.ones(1000, np.float32)})], [(0, 1, 2, 3)])
try:
    outbox.put(2, [({}, {"d": np.ones(2_000_000, np.float32)})], [(0, 1, 2, 3)])
except DiskFullError as error:
    print(error)
"""


def test_a_round_that_does_not_fit_in_memory_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """As in a container, whose /dev/shm has 64 MB by default."""
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path} && cd {tmp_path} || exit 77"
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare of util-linux")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount}; exec "$0" -c "$1"', sys.executable, SMALL_MEMORY],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no file system of its own: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "cannot keep 8,388,608 bytes in outbox" in done.stdout
    assert "No space left on device. Free some space, or set TMPDIR" in done.stdout
