"""The figures and the recommendation of trials."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sparsefleet.cli.main import main
from sparsefleet.errors import ConfigError
from sparsefleet.planning import mode_trial
from sparsefleet.planning.mode_trial import ModeResult, TrialConfig, recommend, run_trials


def _trained(mode: str, loss: float, rate: float = 100.0) -> ModeResult:
    return ModeResult(mode=mode, examples=1000, seconds=10, examples_per_s=rate, loss=loss)


def _write_records(monkeypatch: pytest.MonkeyPatch, *workers: list[list[float]]) -> None:
    """Let a trial find these points of its workers, without running a script."""

    def run(command: object, environ: dict[str, str], *_: object) -> int:
        del command
        for rank, points in enumerate(workers):
            record = {
                "mode": environ["SPARSEFLEET_MODE"],
                "points": points,
                "steps": len(points),
                "staleness": 0.0,
                "server_bytes": 0.0,
            }
            path = Path(environ["SPARSEFLEET_TRIAL_DIR"], f"worker-{rank}.json")
            path.write_text(json.dumps(record))
        return 0

    monkeypatch.setattr(mode_trial, "_run", run)


def _config(tmp_path: Path) -> TrialConfig:
    (tmp_path / "train.py").touch()
    return TrialConfig(script=str(tmp_path / "train.py"), modes=["local"], log_dir=str(tmp_path))


def test_a_script_without_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_records(monkeypatch, [[0.1, 0.0, 0.0]], [])
    with pytest.raises(ConfigError, match=r"train\.py: .* no examples"):
        run_trials(_config(tmp_path))


def test_a_worker_without_data_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_records(monkeypatch, [[1.0, 100.0, 50.0], [2.0, 200.0, 90.0]], [])
    (found,) = run_trials(_config(tmp_path))
    assert (found.examples, found.error) == (200, "")


def test_a_mode_that_diverges_is_not_recommended() -> None:
    results = [_trained("local", 0.5), _trained("sync", 0.5), _trained("async", math.nan, 900.0)]
    chosen, reasons = recommend(results)
    assert chosen == "sync"
    assert "async is excluded: its loss is nan" in reasons
    chosen, reasons = recommend([_trained("local", 0.5), _trained("async", math.nan), results[1]])
    assert chosen == "sync"


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_mode_that_diverges_is_not_recommended_without_a_baseline_either(lost: float) -> None:
    modes = [_trained("sync", 0.5), _trained("async", lost, 900.0)]
    for results in (modes, [_trained("local", lost), *modes]):
        chosen, reasons = recommend(results)
        assert chosen == "sync"
        assert f"async is excluded: its loss is {lost}" in reasons
        assert not any("as well as local" in reason for reason in reasons)


def test_local_is_recommended_if_all_other_modes_diverge_and_none_if_local_does_too() -> None:
    chosen, reasons = recommend([_trained("local", 0.5), _trained("async", math.nan)])
    assert chosen == "local"
    assert reasons == ["async is excluded: its loss is nan", "no other mode has a finite loss"]
    for results in ([], [_trained("local", math.nan)]):
        chosen, reasons = recommend([*results, _trained("async", math.nan)])
        assert chosen == ""
        assert reasons[-1] == "no mode has a finite loss; try a lower learning rate"


def test_a_trial_as_json_has_null_for_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_records(monkeypatch, [[1.0, 100.0, 50.0], [2.0, 200.0, math.nan]])
    (tmp_path / "train.py").touch()
    words = ["--modes", "local", "--log-dir", str(tmp_path), "--json", "--try"]
    assert main(["plan", *words, str(tmp_path / "train.py")]) == 0

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["modes"][0]["loss"] is None
