"""What `sparsefleet launch` shows on a terminal: lines that are updated in place."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

from tests.support.launch_process import DEADLINE_S

SCRIPT = """\
import os, time
if os.environ["SPARSEFLEET_ROLE"] == "server":
    while True:
        time.sleep(60)
print("epoch 1 of 3: loss 0.69")
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["SPARSEFLEET_INDEX"] == "1":
    raise SystemExit("no more data")
time.sleep(60)
"""


def read_until(terminal: int, text: str, seen: str) -> str:
    """Wait for `text`; return everything shown so far."""
    end = time.monotonic() + DEADLINE_S
    while text not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(terminal, 65536).decode("utf-8", "replace")
    return seen


def test_terminal_shows_state_and_last_line_of_each_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    terminal, screen = pty.openpty()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "sparsefleet", "launch", "--workers", "2", "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=screen,
        stderr=screen,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(screen)
    try:
        seen = read_until(terminal, "epoch 1 of 3: loss 0.69", "")
        assert "server 0" in seen
        assert "running" in seen
        (tmp_path / "go").touch()
        seen = read_until(terminal, "| no more data", seen)
        with contextlib.suppress(
            OSError
        ):  # the end of the terminal's output, once all writers have closed it
            while shown := os.read(terminal, 65536):
                seen += shown.decode("utf-8", "replace")
        assert launcher.wait(DEADLINE_S) == 1
        assert "worker 1" in seen
        assert "exited with code 1" in seen
        assert "stopped" in seen
    finally:
        launcher.terminate()
        launcher.wait(DEADLINE_S)
        os.close(terminal)
