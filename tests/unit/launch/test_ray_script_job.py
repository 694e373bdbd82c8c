"""What `sparsefleet launch --on ray` refuses, and what it asks of Ray."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsefleet.cli.main import main

pytestmark = [
    pytest.mark.job,  # importing Ray takes seconds
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]"),
]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--keep-going"], "--keep-going is only for jobs with local processes"),
        (["--start-port", "9100"], "--start-port is only for jobs with local processes"),
        (["--show", "worker.0"], "--show is only for jobs with local processes"),
        (["--restart", "all"], "--restart all needs --durability off"),
    ],
)
def test_flags_that_ray_replaces_are_refused(
    flags: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--on", "ray", *flags, str(script)])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_the_dashboard_is_named_first_and_workers_are_placed_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparsefleet.launch.ray import script_job

    asked: dict[str, Any] = {}
    monkeypatch.setattr(script_job, "_connect", lambda *_, **__: "127.0.0.1:8265")
    monkeypatch.setattr(script_job, "make_plan", lambda *_, **__: SimpleNamespace(attempt=0))
    monkeypatch.setattr(script_job, "run_plan", lambda *_, **settings: asked.update(settings))
    monkeypatch.setenv(script_job.RAY_CHDIR_TO_TRIAL_DIR, "0")
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["--worker-placement", "SPREAD", "--worker-cpus", "2", "--workers", "3"]
    words += ["--job", "ads", "--log-dir", str(tmp_path)]
    assert main(["launch", "--on", "ray", *words, str(script)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "job ads on Ray; dashboard at http://127.0.0.1:8265"
    scaling = asked["scaling_config"]
    assert (scaling.num_workers, scaling.placement_strategy) == (3, "SPREAD")
    assert scaling.resources_per_worker == {"CPU": 2.0}


def test_an_address_at_which_nothing_listens_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit):
            main(["launch", "--on", "ray", "--address", address, str(script)])
    said = capsys.readouterr().err
    assert f"no Ray cluster at {address}:" in said
    assert "refused" in said


@pytest.mark.parametrize(
    ("variable", "address", "runs_here", "expected"),
    [
        (None, "", True, [{"address": "auto"}]),
        (None, "", False, [{"address": "auto"}, {"address": "local", "num_cpus": 1000}]),
        ("local", "", True, [{"address": "local", "num_cpus": 1000}]),
        ("10.0.0.1:6379", "", True, [{"address": None}]),
        (None, "10.0.0.1:6379", True, [{"address": "10.0.0.1:6379"}]),
    ],
)
def test_a_cluster_started_for_a_job_has_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    address: str,
    runs_here: bool,
    expected: list[dict[str, Any]],
) -> None:
    """A job that asked for more CPUs than the machine has waited forever."""
    from sparsefleet.launch.ray import trainer

    calls = []

    def init(**settings: Any) -> None:
        calls.append(settings)
        if settings["address"] == "auto" and not runs_here:
            raise ConnectionError("could not find any running Ray instance")

    monkeypatch.setattr(trainer.ray, "init", init)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    trainer.connect(999.5, address)
    assert calls == expected
