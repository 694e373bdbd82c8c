"""Every example, alone and launched on 2 servers x 2 workers, on little data."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.process.example_run import EXAMPLES, number_after, run_alone, run_launched


def test_ctr_dnn_alone_learns_and_its_saved_model_predicts_the_same(tmp_path: Path) -> None:
    flags = ("--rows", "20000", "--threads", "2", "--quiet", "--out", str(tmp_path / "model"))
    printed = run_alone("ctr_dnn", *flags)
    assert number_after("held-out AUC", printed) > 0.6
    assert "loaded again: all 4,000 predictions are the same" in printed
    assert "trained" not in printed
    assert (tmp_path / "model" / "manifest.json").exists()


def test_deepfm_learns_alone() -> None:
    printed = run_alone("deepfm", "--rows", "30000")
    assert number_after("held-out AUC", printed) > 0.66
    assert "trained 30,000 examples" in printed


@pytest.mark.job
def test_deepfm_learns_launched(tmp_path: Path) -> None:
    flags = ("--rows", "30000", "--mode", "half_async", "--quiet")
    printed = run_launched("deepfm", tmp_path, *flags, launch=("--native-servers",))
    assert number_after("held-out AUC", printed) > 0.66


def test_word2vec_finds_the_planted_twins_alone() -> None:
    printed = run_alone("word2vec", "--pairs", "200000", "--quiet")
    assert number_after("the nearest word is the twin:", printed) > 90
    assert number_after("cosine of twins", printed) > 0.9


@pytest.mark.job
def test_word2vec_finds_the_planted_twins_launched(tmp_path: Path) -> None:
    flags = ("--pairs", "300000", "--mode", "geo", "--quiet")
    printed = run_launched("word2vec", tmp_path, *flags, launch=("--native-servers",))
    assert number_after("the nearest word is the twin:", printed) > 90


def test_custom_loop_learns_alone() -> None:
    assert number_after("held-out AUC", run_alone("custom_loop", "--rows", "30000")) > 0.68


@pytest.mark.job
def test_custom_loop_learns_launched_with_servers_of_the_script(tmp_path: Path) -> None:
    printed = run_launched("custom_loop", tmp_path, "--rows", "30000", "--mode", "sync")
    assert number_after("held-out AUC", printed) > 0.66


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    if "argparse" in text:
        assert f"python examples/{path.name}" in text
        assert f"examples/{path.name} --mode" in text


@pytest.mark.slow  # a minute and more on two cores
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]")
def test_on_ray_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # loopback only
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not the cluster of another test
    printed = run_alone("on_ray", "--rows", "30000", "--storage", str(tmp_path))
    assert number_after("held-out AUC", printed) > 0.66
