"""examples/ctr_dnn.py as `make demo` runs it, on fewer examples."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.server_process import ServerProcess

SCRIPT = Path(__file__).parents[2] / "examples" / "ctr_dnn.py"
DEADLINE_S = 300.0


def run_demo(out: Path, *flags: str) -> tuple[float, str]:
    """The held-out AUC and all that was printed."""
    command = [sys.executable, str(SCRIPT), "--rows", "20000", "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"held-out AUC (\d\.\d+)", done.stdout)
    assert found is not None, done.stdout
    return float(found.group(1)), done.stdout


def test_demo_learns_and_its_saved_model_predicts_the_same(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    local_auc, printed = run_demo(tmp_path / "local")
    assert local_auc > 0.6
    assert "training 100 %" in printed
    assert "loaded again: all 4,000 predictions are the same" in printed
    assert (tmp_path / "local" / "dense.safetensors").exists()

    endpoint = start_server().wait_ready()
    remote_auc, printed = run_demo(tmp_path / "remote", "--quiet", "--servers", endpoint)
    assert remote_auc == local_auc
    assert "training 100 %" not in printed
