"""examples/ctr_dnn.py as `make demo` runs it, on fewer examples."""

from __future__ import annotations

import re
from pathlib import Path

from tests.process.example_run import number_after, run_launched

ROOT = Path(__file__).parents[2]


def test_demo_shows_its_training_and_a_saved_model_that_predicts_the_same(tmp_path: Path) -> None:
    out = tmp_path / "model"
    flags = ("--mode", "async", "--rows", "20000", "--batch", "100", "--out", str(out))
    printed = run_launched("ctr_dnn", tmp_path, *flags)
    assert re.search(r"epoch 1/1 +100%.*examples/s.*loss 0\.\d+", printed), printed
    assert "trained 10,000 examples" in printed  # worker 0's part
    assert "where the time went" in printed
    assert number_after("held-out AUC", printed) > 0.6
    assert "loaded again: all 4,000 predictions are the same" in printed
    assert (out / "manifest.json").exists()
    assert "trained 10,000 examples" in (tmp_path / "logs" / "workerlog.1").read_text()


def test_make_demo_is_a_job_of_two_servers_and_two_workers() -> None:
    command = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    for words in ("launch --servers 2 --workers 2", "--show worker.0", "ctr_dnn.py --mode async"):
        assert words in command
