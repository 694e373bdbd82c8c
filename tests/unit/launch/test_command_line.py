from __future__ import annotations

from pathlib import Path

import pytest

from sparsefleet.cli import main as cli
from sparsefleet.launch import LaunchConfig


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LaunchConfig]:
    """The configs that `sparsefleet launch` would have run, in a directory with train.py."""
    found: list[LaunchConfig] = []

    def run(config: LaunchConfig) -> int:
        found.append(config)
        return 42

    monkeypatch.setattr(cli, "run_job", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return found


def run(*words: str) -> int | str | None:
    try:
        return cli.main(["launch", *words])
    except SystemExit as ending:
        return ending.code


def test_flags_end_at_the_script_and_the_jobs_code_is_handed_on(
    launched: list[LaunchConfig],
) -> None:
    assert run("--servers", "2", "--workers", "3", "train.py", "--servers", "9", "-m") == 42
    config = launched[0]
    assert (config.num_servers, config.num_workers) == (2, 3)
    assert config.arguments == ("--servers", "9", "-m")
    assert not config.is_module


def test_all_flags(launched: list[LaunchConfig]) -> None:
    words = (
        "--nodes host1,host2 --node-rank 1 --start-port 9100 --transport plain --keep-going --quiet"
        " --env A=1 --env B=x=y --grace-seconds 2 --join-seconds 9 --log-dir here --native-servers"
        " -m my.train --lr 1"
    )
    assert run(*words.split()) == 42
    assert launched[0] == LaunchConfig(
        script="my.train",
        arguments=("--lr", "1"),
        is_module=True,
        nodes=("host1", "host2"),
        node_rank=1,
        start_port=9100,
        transport="plain",
        keep_going=True,
        quiet=True,
        set_variables=(("A", "1"), ("B", "x=y")),
        grace_s=2.0,
        join_timeout_s=9.0,
        log_dir="here",
        native_servers=True,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "SCRIPT"),
        ("missing.py", "script 'missing.py' does not exist"),
        ("--workers 0 train.py", "--workers must"),
        ("--workers two train.py", "invalid int value"),
        ("--env A train.py", "--env must be NAME=VALUE, got 'A'"),
        ("--nodes a,b train.py", "--start-port is required with nodes"),
        ("--nodes a,b --node-rank 2 --start-port 9100 train.py", "--node-rank"),
        ("--transport pigeon train.py", "invalid choice"),
    ],
)
def test_wrong_command_line_exits_2_and_says_what(
    words: str, message: str, launched: list[LaunchConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words.split()) == 2
    assert message in capsys.readouterr().err
    assert not launched
