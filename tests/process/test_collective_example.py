"""The example of collective training, alone, launched, and to the end on real MNIST."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.process.example_run import number_after, run_alone, run_launched

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
MNIST_DEADLINE_S = 1800.0  # bfloat16 is six times as slow as float32 on a CPU without units for it


pytestmark = pytest.mark.job


def test_mnist_collective_learns_alone() -> None:
    printed = run_alone("mnist_collective", "--quiet", "--pictures", "3000", "--batch", "32")
    assert number_after("test accuracy", printed) > 60


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not at ../shared/data")
@pytest.mark.parametrize("mode", ["sync", "local_sgd", "bfloat16"])
def test_real_mnist_is_learned_to_98_percent(mode: str, tmp_path: Path) -> None:
    flags = ("--mode", mode, "--data", str(MNIST), "--epochs", "3", "--quiet")
    printed = run_launched(
        "mnist_collective",
        tmp_path,
        *flags,
        launch=("--servers", "0"),
        deadline_s=MNIST_DEADLINE_S,
    )
    assert number_after("test accuracy", printed) > 98
