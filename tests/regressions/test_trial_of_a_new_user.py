"""Misleading texts, figures and displays that a new user's trial found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from sparsefleet.data import Csv, Reader, Slot
from sparsefleet.engine.clock import TimeShares, advise
from sparsefleet.errors import BadLineError
from sparsefleet.launch.child_process import ChildState
from sparsefleet.launch.status_display import status_table
from sparsefleet.metrics import AUC


def test_auc_of_few_positives_with_small_scores_is_close_to_the_exact_one() -> None:
    rng = np.random.default_rng(3)
    scores = rng.beta(1.0, 120.0, 6_000).astype(np.float32)
    labels = np.zeros(6_000, np.int64)
    labels[rng.choice(6_000, 48, replace=False, p=scores / scores.sum(dtype=np.float64))] = 1
    auc = AUC()
    auc.update(scores, labels)
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None]
    exact = ((positive > negative).mean() + (positive >= negative).mean()) / 2
    assert auc.compute() == pytest.approx(float(exact), abs=1e-4)


def test_a_stray_quote_names_the_setting_that_helps(tmp_path: Path) -> None:
    (tmp_path / "ads.tsv").write_text('id\ttitle\n1\t"12 inch\n')
    columns = (Slot("id", "uint64", ()),)
    with pytest.raises(BadLineError, match='quote=""'):
        list(Reader(tmp_path / "ads.tsv", Csv(*columns, separator="\t"), 1))
    plain = Reader(tmp_path / "ads.tsv", Csv(*columns, separator="\t", quote=""), 1)
    assert len(list(plain)) == 1


def test_the_bottleneck_is_the_largest_share_of_its_table() -> None:
    shares = TimeShares(compute=48, pull=21, push=15, data=10, other=6)
    assert advise(shares).startswith("48% compute")
    assert advise(TimeShares(compute=48, pull=40, other=12)).startswith("40% pull")


def test_a_long_line_of_output_does_not_squeeze_names_and_states() -> None:
    def child(name: str, state: ChildState) -> SimpleNamespace:
        log = SimpleNamespace(last_line=lambda: "epoch 1 " + "x" * 300)
        return SimpleNamespace(name=name, state=state, exit_code=-9, log=log)

    console = Console(width=120, force_terminal=False)
    with console.capture() as shown:
        rows = [child("server 0", ChildState.RUNNING), child("worker 11", ChildState.FAILED)]
        console.print(status_table(rows))  # type: ignore[arg-type]
    first, second = shown.get().splitlines()
    assert first.startswith("server 0   running")
    assert second.startswith("worker 11  was killed by SIGKILL  epoch 1 ")
    assert max(len(first), len(second)) <= 120
