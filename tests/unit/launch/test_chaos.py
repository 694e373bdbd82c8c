from __future__ import annotations

import argparse
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sparsefleet.cli.chaos import _given_job, add_chaos_flags, run_chaos_command
from sparsefleet.cli.main import make_parser
from sparsefleet.errors import ConfigError
from sparsefleet.launch.chaos import ChaosConfig, ChaosReport, make_schedule
from sparsefleet.launch.chaos.chaos_run import _check_ledger
from sparsefleet.launch.chaos.injector import FaultyProxies

DEADLINE_S = 60.0


def test_same_seed_gives_the_same_schedule() -> None:
    config = ChaosConfig(kinds=("kill", "pause", "partition"), every_s=1.0, seed=4)
    first = make_schedule(config, 2, 3)
    assert first == make_schedule(config, 2, 3)
    assert first != make_schedule(replace(config, seed=5), 2, 3)
    assert 40 <= len(first) <= 90, "one per second in a minute, more or less"
    assert {fault.kind for fault in first} == {"kill", "pause", "partition"}
    assert all(fault.target in ("server 0", "server 1") for fault in first if "part" in fault.kind)
    assert [fault.at_s for fault in first] == sorted(fault.at_s for fault in first)


def test_only_chosen_processes_are_killed() -> None:
    config = ChaosConfig(roles=("workers",), every_s=0.5)
    assert {fault.target for fault in make_schedule(config, 5, 2)} == {"worker 0", "worker 1"}
    with pytest.raises(
        ConfigError,
        match="nothing to kill: the job has 0 servers",
    ):
        make_schedule(ChaosConfig(roles=("servers",)), 0, 2)


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(4096):
                    connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(DEADLINE_S)


def test_partition_holds_bytes_and_delivers_them_afterwards(echo: str) -> None:
    with FaultyProxies([echo]) as proxies:
        host, port = proxies.endpoints[0].split(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as client:
            client.sendall(b"before")
            assert client.recv(100) == b"before"
            proxies.partition(0, True)
            client.sendall(b"during")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(100)
            proxies.partition(0, False)
            client.settimeout(DEADLINE_S)
            assert client.recv(100) == b"during"
            proxies.delay(0, 0.05)
            client.sendall(b"late")
            assert client.recv(100) == b"late"


def test_proxy_waits_for_a_server_that_is_restarting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = free.getsockname()[1]
    with FaultyProxies([f"127.0.0.1:{target}"]) as proxies:
        host, port = proxies.endpoints[0].split(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as client:
            client.sendall(b"early")
            with socket.create_server(("127.0.0.1", target)) as server:
                server.settimeout(DEADLINE_S)
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(100) == b"early"


def test_ledger_names_what_is_missing_and_what_was_repeated() -> None:
    good = {"records": 9, "missing": 0, "repeated": 0, "first_missing": [], "first_repeated": []}
    good["counted"] = [9.0, 9.0]
    assert _check_ledger(good) == []
    [miscounted] = _check_ledger({**good, "counted": [9.0, 8.0]})
    assert "the dense counter shows [9.0, 8.0] records, expected 9" in miscounted
    lost, doubled = _check_ledger(
        {**good, "missing": 2, "repeated": 1, "first_missing": [3, 4], "first_repeated": [[5, 2.0]]}
    )
    assert "2 records were not trained, the first: [3, 4]" in lost
    assert "1 records were trained twice, the first: [[5, 2.0]]" in doubled
    assert "left no ledger" in _check_ledger(None)[0]


def test_report_says_what_failed() -> None:
    report = ChaosReport(
        seed=1,
        exit_code=1,
        seconds=2.0,
        injected=[],
        skipped=[],
        starts={"worker 0": 2},
        peak_bytes={"worker 0": 1 << 20},
        left=[],
        problems=["the job exited with code 1"],
    )
    assert report.lines()[-2:] == ["FAILED: the job exited with code 1", "failed"]
    assert "  worker 0: at most 1 MiB, 2 starts" in report.lines()
    assert report.to_json()["problems"] == report.problems


def test_given_job_is_restarted_without_limit_unless_it_has_one() -> None:
    parser = argparse.ArgumentParser()
    add_chaos_flags(parser)
    for words, rule, limit in (
        ((), "killed", 1_000_000),
        (("--restart", "failed"), "failed", 1_000_000),
        (("--restart", "killed", "--max-restarts", "3"), "killed", 3),
        (("--durability", "off"), "all", 0),
    ):
        options = parser.parse_args(["--", "launch", *words, "-m", "train"])
        job = _given_job(options, lambda line: make_parser().parse_args(line))
        assert (job.restart_rule, job.restart_limit) == (rule, limit)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "soon", "--ledger"], "--every must be a time such as 500ms"),
        ([], "expected a job as `-- launch"),
        (["--", "train.py"], "expected a job as `-- launch"),
        (["--kill", "managers", "--ledger"], "ChaosConfig.roles must be servers, workers"),
        (["--kill", "servers", "--pause", "workers", "--ledger"], "must name the same processes"),
        (["--ledger", "--", "launch", "train.py"], "--ledger runs its own job"),
    ],
)
def test_wrong_command_lines_are_explained(words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    add_chaos_flags(parser)
    with pytest.raises(ConfigError, match=message):
        run_chaos_command(parser.parse_args(words), lambda _: argparse.Namespace())
