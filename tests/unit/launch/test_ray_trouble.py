"""A job on Ray whose coordinator does not answer, or whose disk is full."""

from __future__ import annotations

import errno
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.launch_process import wait_until

from sparsefleet.launch.ray.coordinator import News, Presence
from sparsefleet.launch.ray.servers import FleetPlan, Servers

pytestmark = [
    pytest.mark.job,  # importing Ray takes seconds
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]"),
]


class Actor:
    """An actor that counts the calls to it."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Actor:
        return self

    def remote(self, *_: Any) -> Actor:
        self.calls += 1
        return self


class FakeRay(SimpleNamespace):
    """The part of Ray that the end of a job needs. `answers`: what `get` returns, or raises."""

    def __init__(self, answers: list[Any], nodes: list[str]) -> None:
        import ray

        super().__init__(exceptions=ray.exceptions, killed=[], used=[])
        self._answers = answers
        self._nodes = nodes

    def get(self, *_: Any, **__: Any) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "0" * 56)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": True} for node in self._nodes]

    def remote(self, _: Any) -> Any:
        def options(*, scheduling_strategy: Any, **_: Any) -> Actor:
            self.used.append(scheduling_strategy.node_id)
            return Actor()

        return SimpleNamespace(options=options)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def wait(self, *_: Any, **__: Any) -> None:
        """Return at once: all tasks are done."""


def end_job(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Actor:
    """End a job with one server; return its actor."""
    from sparsefleet.launch.ray import running_servers

    monkeypatch.setattr(running_servers, "ray", fake)
    plan = FleetPlan(name="test", job_id="a", job_key="k", servers=Servers(1), num_workers=1)
    servers = running_servers.RunningServers(plan, {})
    fake.used.clear()
    server = Actor()
    servers._actors.append(server)
    servers.close()
    assert fake.killed == [server, servers.coordinator]
    return server


def test_servers_are_ended_without_an_answer_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    fake = FakeRay([ray.exceptions.GetTimeoutError("no answer"), [None]], [])
    assert end_job(fake, monkeypatch).calls == 1


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_log_of_a_server_that_is_lost_is_removed_from_its_node(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    import ray

    present = {
        "server-0": Presence(role="server", index=0, node_id="a" * 56, host="h", pid=1),
        "worker-0": Presence(role="worker", index=0, node_id="b" * 56, host="h", pid=1),
    }
    ended = ray.exceptions.RayActorError() if is_lost else [None]
    fake = FakeRay([present, ended], ["a" * 56, "b" * 56])
    end_job(fake, monkeypatch)
    assert sorted(fake.used) == (["a" * 56] if is_lost else []) + ["b" * 56]


def test_addresses_are_written_once_there_is_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray

    from sparsefleet.launch.ray import node

    news = {"server-0": "127.0.0.1:1"}
    failures: list[str] = []
    is_full = False

    def write(path: str, text: str) -> None:
        if is_full:
            failures.append(path)
            raise OSError(errno.ENOSPC, "No space left on device", path)
        Path(path).write_text(text)

    def get(_: Any) -> News:
        return News(version=(0.0, 1), addresses=dict(news))

    monkeypatch.setattr(node, "ray", SimpleNamespace(get=get, exceptions=ray.exceptions))
    monkeypatch.setattr(node, "write_atomically", write)
    place = SimpleNamespace(address_file=lambda name: str(tmp_path / name))
    who = Presence(role="worker", index=0, node_id="n", host="127.0.0.1", pid=1)
    book = node.AddressBook(Actor(), place, who)  # type: ignore[arg-type]
    book.before_each_request = lambda: book._stopping.wait(0.01) and None
    book.start()
    thread = book._thread
    try:
        is_full = True
        news["server-0"] = "127.0.0.1:2"
        wait_until(lambda: bool(failures), "a write fails")
        is_full = False
        found = tmp_path / "server-0"
        wait_until(lambda: found.read_text() == "127.0.0.1:2\n" or not thread.is_alive(), "written")
        assert thread.is_alive()
    finally:
        book.stop()
        thread.join()
