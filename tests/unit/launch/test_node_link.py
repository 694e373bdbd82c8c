"""The link between launchers, in one process."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sparsefleet.errors import AuthError, ConfigError, PeerLostError, ProtocolError
from sparsefleet.launch.hub_link import HubLink
from sparsefleet.launch.node_link import (
    AllDone,
    Joined,
    LeafLink,
    LinkConfig,
    LinkEvent,
    NodeLink,
    OtherNodeFailed,
    Restart,
    Wire,
)

DEADLINE_S = 30.0
KEY = b"the key of the job, long enough"


class Listener:
    """A link together with the events it has emitted."""

    def __init__(
        self, make: Callable[[LinkConfig, Callable[[], None]], NodeLink], config: LinkConfig
    ):
        self._woken = threading.Semaphore(0)
        self.link = make(config, self._woken.release)

    def next(self) -> LinkEvent:
        assert self._woken.acquire(timeout=DEADLINE_S)
        event = self.link.event()
        assert event is not None
        return event


@pytest.fixture
def job() -> LinkConfig:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nodes = ("127.0.0.1",) * 3
    return LinkConfig(nodes=nodes, rank=0, port=port, key=KEY, shape="2 servers")


@pytest.fixture
def open_link(job: LinkConfig) -> Iterator[Callable[..., Listener]]:
    opened: list[Listener] = []

    def start(rank: int, **changed: object) -> Listener:
        kind = HubLink if rank == 0 else LeafLink
        opened.append(Listener(kind, replace(job, rank=rank, **changed)))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for listener in reversed(opened):
        listener.link.close()


@pytest.fixture
def three(open_link: Callable[..., Listener]) -> list[Listener]:
    """Return a hub and two leaves that have joined."""
    links = [open_link(0), open_link(1), open_link(2)]
    for listener in (links[0], *links):
        assert isinstance(listener.next(), Joined)
    return links


def test_done_means_done_on_all_nodes(three: list[Listener]) -> None:
    hub, first, second = three
    first.link.report_done(0)
    hub.link.report_done(0)
    assert hub.link.event() is None
    second.link.report_done(0)
    assert [listener.next() for listener in three] == [AllDone()] * 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_failure_reaches_all_others(three: list[Listener], failing: int) -> None:
    three[failing].link.report_failure(3, "worker 1\nended")
    for listener in three:
        if listener is not three[failing]:
            assert listener.next() == OtherNodeFailed(3, "worker 1 ended")
    assert three[failing].link.event() is None


def test_a_crash_restarts_all_nodes_once_however_many_report_it(
    open_link: Callable[..., Listener],
) -> None:
    links = [open_link(rank, max_restarts=1) for rank in range(3)]
    for listener in (links[0], *links):
        assert isinstance(listener.next(), Joined)
    hub, first, second = links
    second.link.report_done(0)
    first.link.report_crash(0, 3, "worker 1 ended")
    assert [listener.next() for listener in links] == [Restart(1, "worker 1 ended")] * 3
    second.link.report_crash(0, 1, "worker 2 lost worker 1")
    hub.link.report_crash(0, 1, "worker 0 lost worker 1")
    for listener in (hub, first):
        listener.link.report_done(1)
    assert hub.link.event() is None, "what was done before the restart does not count"
    second.link.report_crash(1, 4, "worker 2 ended")
    assert [listener.next() for listener in links] == [OtherNodeFailed(4, "worker 2 ended")] * 3


def test_node_about_to_join_hears_that_the_hub_has_failed(
    open_link: Callable[..., Listener],
) -> None:
    hub = open_link(0)
    hub.link.report_failure(3, "worker 0 ended")
    late = [open_link(1), open_link(2)]
    hub.link.close()
    for listener in late:
        assert isinstance(listener.next(), Joined)
        assert listener.next() == OtherNodeFailed(3, "worker 0 ended")


def test_hub_hears_of_a_failure_before_the_leaf_has_joined(
    open_link: Callable[..., Listener],
) -> None:
    leaf = open_link(1)
    leaf.link.report_failure(3, "worker 1 ended")
    hub = open_link(0)
    leaf.link.close()
    assert isinstance(hub.next(), Joined)
    assert hub.next() == OtherNodeFailed(3, "worker 1 ended")


def test_last_word_of_a_leaf_is_read_though_nothing_can_be_sent_to_it_any_more(
    open_link: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Wire.send

    def send_only_the_first(wire: Wire, text: str) -> None:
        if wire._side == "hub" and wire._sent > 0:
            raise PeerLostError("connection between launchers lost: Broken pipe")
        send(wire, text)

    monkeypatch.setattr(Wire, "send", send_only_the_first)
    hub, leaf = open_link(0), open_link(1)
    leaf.link.report_failure(3, "worker 1 ended")
    assert isinstance(hub.next(), Joined)
    assert hub.next() == OtherNodeFailed(3, "worker 1 ended")


def test_leaf_that_goes_away_fails_the_job(three: list[Listener]) -> None:
    three[1].link.close()
    event = three[0].next()
    assert isinstance(event, OtherNodeFailed)
    assert "node 1 (127.0.0.1) is lost" in event.text
    assert three[2].next() == event


def test_leaf_may_come_first(open_link: Callable[..., Listener]) -> None:
    leaf = open_link(1)
    leaf.link.report_done(0)
    hub = open_link(0)
    assert isinstance(hub.next(), Joined)
    assert isinstance(leaf.next(), Joined)


def test_missing_node_is_named(open_link: Callable[..., Listener]) -> None:
    hub = open_link(0, join_timeout_s=0.1)
    event = hub.next()
    assert isinstance(event, OtherNodeFailed)
    assert "node 1 (127.0.0.1), node 2 (127.0.0.1)" in event.text


def test_other_settings_or_a_rank_taken_are_refused(open_link: Callable[..., Listener]) -> None:
    open_link(0)
    assert isinstance(open_link(1).next(), Joined)
    for changed, message in (
        ({"shape": "3 servers"}, "started for 3 servers"),
        ({}, "already joined"),
    ):
        event = open_link(1, **changed).next()
        assert isinstance(event, OtherNodeFailed)
        assert message in event.text
        assert event.exit_code == 2


def test_stranger_does_not_disturb_the_job(
    three: list[Listener], job: LinkConfig, open_link: Callable[..., Listener]
) -> None:
    with socket.create_connection(("127.0.0.1", job.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(10_000))
    event = open_link(1, key=b"another key altogether").next()
    assert isinstance(event, OtherNodeFailed)
    assert "a different job key" in event.text
    for listener in three:
        listener.link.report_done(0)
    assert [listener.next() for listener in three] == [AllDone()] * 3


def test_taken_port_of_the_hub_is_named(
    open_link: Callable[..., Listener], job: LinkConfig
) -> None:
    open_link(0)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{job.port}"):
        open_link(0)


def connect_wires(keys: tuple[bytes, bytes]) -> tuple[Wire, Wire]:
    one, other = socket.socketpair()
    found: list[Wire] = []
    thread = threading.Thread(
        target=lambda: found.append(Wire(one, keys[0], is_hub=True, timeout_s=DEADLINE_S))
    )
    thread.start()
    leaf = Wire(other, keys[1], is_hub=False, timeout_s=DEADLINE_S)
    thread.join(DEADLINE_S)
    return found[0], leaf


def test_wire_carries_lines_both_ways_until_the_end() -> None:
    hub, leaf = connect_wires((KEY, KEY))
    with hub._socket, leaf._socket:
        hub.send("one")
        hub.send("two words")
        assert [leaf.receive(DEADLINE_S) for _ in range(2)] == ["one", "two words"]
        leaf.send("")
        assert hub.receive(DEADLINE_S) == ""
        with pytest.raises(TimeoutError):
            hub.receive(0.01)
        hub.end_sending()
        with pytest.raises(PeerLostError):
            leaf.receive(DEADLINE_S)


def test_wire_refuses_another_key_a_repeated_and_a_reflected_line() -> None:
    hub, leaf = connect_wires((KEY, b"another key altogether"))
    with hub._socket, leaf._socket:
        hub.send("hello")
        with pytest.raises(AuthError):
            leaf.receive(DEADLINE_S)
    hub, leaf = connect_wires((KEY, KEY))
    with hub._socket, leaf._socket:
        line = f"{hub._mac('hub', 0, 'done')} done\n".encode()
        hub._socket.sendall(line + line)
        assert leaf.receive(DEADLINE_S) == "done"
        with pytest.raises(AuthError):
            leaf.receive(DEADLINE_S)
        leaf._socket.sendall(line)
        with pytest.raises(AuthError):
            hub.receive(DEADLINE_S)


def test_wire_refuses_peers_that_are_not_launchers() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"SSH-2.0-OpenSSH\n")
        with pytest.raises(ProtocolError):
            Wire(one, KEY, is_hub=True, timeout_s=DEADLINE_S)
    one, other = socket.socketpair()
    with one, other:
        other.sendall(bytes(5000))
        with pytest.raises(ProtocolError):
            Wire(one, KEY, is_hub=True, timeout_s=DEADLINE_S)


def test_silent_strangers_do_not_keep_a_node_out(
    job: LinkConfig, open_link: Callable[..., Listener]
) -> None:
    hub = open_link(0)
    before = threading.active_count()
    strangers = [socket.create_connection(("127.0.0.1", job.port)) for _ in range(200)]
    try:
        open_link(1)
        assert isinstance(hub.next(), Joined)
        assert threading.active_count() - before < 100
    finally:
        for one in strangers:
            one.close()


def test_hub_without_descriptors_accepts_again_later(
    open_link: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = socket.socket.accept, iter([errno.EMFILE] * 2)

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if (code := next(failures, None)) is not None:
            raise OSError(code, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    hub = open_link(0)
    open_link(1)
    assert isinstance(hub.next(), Joined)


@pytest.mark.parametrize("is_heard", [False, True])
def test_leaf_that_was_dropped_before_its_welcome_joins_again(
    job: LinkConfig, open_link: Callable[..., Listener], is_heard: bool
) -> None:
    """The hub drops the oldest connection that has not joined, which may be a launcher's."""
    with socket.create_server(("127.0.0.1", job.port)) as listener:
        leaf = open_link(1)
        leaf.link.report_done(0)
        connection, _ = listener.accept()
        with connection:
            wire = Wire(connection, KEY, is_hub=True, timeout_s=DEADLINE_S)
            assert wire.receive(DEADLINE_S).startswith("join 1")
            if is_heard:
                wire.send("alive")
    hub = open_link(0)
    assert isinstance(hub.next(), Joined)
    assert isinstance(leaf.next(), Joined)
    open_link(2).link.report_done(0)
    hub.link.report_done(0)
    assert isinstance(hub.next(), Joined)
    assert isinstance(hub.next(), AllDone)  # what the leaf reported before was sent again


def test_leaf_that_is_always_dropped_gives_up_in_time(
    job: LinkConfig, open_link: Callable[..., Listener]
) -> None:
    with socket.create_server(("127.0.0.1", job.port)) as listener:
        leaf = open_link(1, join_timeout_s=1.0)

        def drop_all() -> None:
            while True:
                connection, _ = listener.accept()
                connection.close()

        threading.Thread(target=drop_all, daemon=True).start()
        event = leaf.next()
    assert isinstance(event, OtherNodeFailed)
    assert "unreachable for 1 s" in event.text
