from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsefleet import __version__
from sparsefleet.cli import main as cli
from sparsefleet.errors import DeadlineError
from sparsefleet.server import ServerConfig


def run(*arguments: str) -> int | str | None:
    """Return the exit code, even if argparse ends the process."""
    try:
        return cli.main(arguments)
    except SystemExit as ending:
        return ending.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"sparsefleet {__version__}\n"


def test_every_command_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    listed = re.findall(r"^    ([a-z-]+)  ", capsys.readouterr().out, re.MULTILINE)
    page = (Path(__file__).parents[3] / "docs" / "command_line.md").read_text(encoding="utf-8")
    assert {"launch", "server", "verify"} <= set(listed)
    assert [name for name in listed if not re.search(rf"[`t] ?{name}\b", page)] == []


@pytest.mark.parametrize("command", [(), ("server",), ("stats",), ("launch",)])
def test_help_explains_and_exits_0(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: sparsefleet")
    if command:
        assert "SPARSEFLEET_JOB_KEY_FILE" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice"),
        (["server", "--endpoint", "here"], "endpoint 'here' must be HOST:PORT"),
        (["server", "--index", "2", "--num-servers", "2"], "ServerConfig.index"),
        (["server", "--transport", "carrier-pigeon"], "invalid choice"),
        (["server", "--max-frame-mb", "0"], "ServerConfig.max_frame_bytes"),
        (["server", "--threads", "many"], "invalid int value"),
        (["server", "--max-connections", "0"], "ServerConfig.max_connections"),
        (["server", "--max-unproven", "-1"], "ServerConfig.max_unproven_connections"),
        (["server", "--handshake-timeout", "0"], "ServerConfig.handshake_timeout_s"),
        (["stats"], "--endpoints"),
        (["stats", "--endpoints", "x"], "endpoint 'x' must be HOST:PORT"),
        (["stats", "--endpoints", "127.0.0.1:1", "--timeout", "0"], "> 0, got 0.0"),
    ],
)
def test_wrong_command_line_exits_2_and_says_what(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_server_elsewhere_without_key_exits_1_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("server", "--endpoint", "0.0.0.0:0") == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sparsefleet server: error: no job key for 0.0.0.0:0")


def test_server_flags_reach_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ServerConfig] = []
    monkeypatch.setattr(cli, "run_server", started.append)
    flags = {
        "--max-connections": "300",
        "--max-unproven": "40",
        "--max-unproven-per-address": "9",
        "--handshake-timeout": "2.5",
    }
    assert run("server", *(word for flag in flags.items() for word in flag)) == 0
    assert started == [
        ServerConfig(
            max_connections=300,
            max_unproven_connections=40,
            max_unproven_per_address=9,
            handshake_timeout_s=2.5,
        )
    ]
    assert run("server") == 0
    assert started[1] == ServerConfig()


def test_debug_level_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(config: object) -> None:
        raise DeadlineError(f"too late for {config}")

    monkeypatch.setattr(cli, "run_server", fail)
    assert run("server", "--log-level", "debug") == 1
    assert any(record.exc_info for record in caplog.records)
