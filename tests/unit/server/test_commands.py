from __future__ import annotations

import json
import logging
import queue
import threading
from typing import Any

import pytest
from tests.support.servers import NativeServers

from sparsefleet import _core
from sparsefleet.errors import (
    CheckpointError,
    ConfigError,
    DeadlineError,
    InternalError,
    NotFoundError,
    ShapeError,
    ShuttingDownError,
    SparseFleetError,
    TooLargeError,
)
from sparsefleet.server.command_loop import (
    Answered,
    CommandLoop,
    CommandStates,
    Keeper,
    pack_body,
    unpack_body,
)
from sparsefleet.server.mailbox import Mailboxes
from sparsefleet.server.work_lists import work_list_handlers
from sparsefleet.store import LocalStore


def echo(command: _core.Command) -> None:
    command.reply(command.name.encode() + b" of " + command.client.encode() + b": " + command.body)


def test_each_server_answers_ping_with_its_place() -> None:
    with NativeServers(2) as servers, servers.connect() as store:
        for index in range(2):
            answer = json.loads(store.command(index, "ping"))
            assert answer == {"index": index, "num_servers": 2}


def test_handler_sees_name_sender_and_bytes_and_its_answer_comes_back() -> None:
    with NativeServers(handlers={"echo": echo}) as servers, servers.connect(name="w-3") as store:
        assert store.command(0, "echo", b"\x00\xff") == b"echo of w-3: \x00\xff"
        body = bytes(range(256)) * 4096
        assert store.command(0, "echo", body).endswith(body)
        assert store.command(0, "echo", b"") == b"echo of w-3: "


@pytest.mark.parametrize(
    ("raised", "wanted"),
    [
        (ShapeError("3 rows, wanted 4"), ShapeError),
        (CheckpointError("table 'ads' is not in it"), CheckpointError),
        (ConfigError("no such setting"), ConfigError),
        (FileNotFoundError("no file there"), NotFoundError),
        (PermissionError("not your file"), OSError),
    ],
)
def test_error_of_a_handler_is_raised_at_the_caller_as_its_kind(
    raised: Exception, wanted: type[Exception]
) -> None:
    def refuse(command: _core.Command) -> None:
        raise raised

    with NativeServers(handlers={"refuse": refuse}) as servers, servers.connect() as store:
        with pytest.raises(wanted, match=r"command 'refuse': asking server 0 .*" + str(raised)):
            store.command(0, "refuse")


def test_message_that_is_not_utf8_reaches_the_caller_and_ends_no_thread() -> None:
    def refuse(command: _core.Command) -> None:
        raise NotFoundError("no save \ud800 here")

    handlers = {"refuse": refuse, "echo": echo}
    with NativeServers(handlers=handlers) as servers, servers.connect(name="w") as store:
        for _ in range(5):  # more than a loop has threads
            with pytest.raises(NotFoundError, match=r"no save \\ud800 here"):
                store.command(0, "refuse", timeout_s=10.0)
        assert store.command(0, "echo", b"still", timeout_s=10.0) == b"echo of w: still"


def test_unexpected_exception_is_logged_once_and_internal_for_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def divide(command: _core.Command) -> None:
        command.reply(bytes(1 // len(command.body)))

    with NativeServers(handlers={"divide": divide}) as servers, servers.connect() as store:
        with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="ZeroDivision"):
            store.command(0, "divide")
        assert [record.message for record in caplog.records] == [
            "command 'divide' from client failed"
        ]


def test_unknown_command_is_not_found_and_names_the_existing_ones() -> None:
    with NativeServers(handlers={"echo": echo}) as servers, servers.connect() as store:
        with pytest.raises(NotFoundError, match=r"this server supports: .*echo.*ping"):
            store.command(0, "sing")


def test_command_dropped_without_an_answer_fails() -> None:
    with NativeServers(handlers={"drop": lambda _: None}) as servers, servers.connect() as store:
        with pytest.raises(InternalError, match="without an answer"):
            store.command(0, "drop")


def test_handler_may_keep_a_command_and_answer_later_from_another_thread() -> None:
    kept: queue.Queue[_core.Command] = queue.Queue()
    with NativeServers(handlers={"keep": kept.put}) as servers, servers.connect() as store:
        answers: list[bytes] = []
        # More than the loop has threads: a kept command holds none.
        callers = [
            threading.Thread(target=lambda: answers.append(store.command(0, "keep")))
            for _ in range(8)
        ]
        for caller in callers:
            caller.start()
        commands = [kept.get(timeout=20) for _ in callers]
        assert answers == []
        for command in commands:
            command.reply(b"at last")
        for caller in callers:
            caller.join(20)
        assert answers == [b"at last"] * 8


def test_second_answer_is_refused_and_a_late_failure_is_without_effect() -> None:
    seen: list[SparseFleetError] = []

    def twice(command: _core.Command) -> None:
        command.reply(b"first")
        try:
            command.reply(b"second")
        except ConfigError as error:
            seen.append(error)
        command.fail("IO", "too late")

    with NativeServers(handlers={"twice": twice}) as servers, servers.connect() as store:
        assert store.command(0, "twice") == b"first"
    assert "already answered" in str(seen[0])


def test_unknown_code_is_refused() -> None:
    def fail(command: _core.Command) -> None:
        command.fail("NO_SUCH_CODE", "x")

    with NativeServers(handlers={"fail": fail}) as servers, servers.connect() as store:
        with pytest.raises(ConfigError, match="'NO_SUCH_CODE'"):
            store.command(0, "fail")


def test_answer_over_the_limit_is_too_large_on_both_sides() -> None:
    seen: list[str] = []

    def large(command: _core.Command) -> None:
        try:
            command.reply(bytes(70_000))
        except TooLargeError as error:
            seen.append(str(error))
            raise

    with NativeServers(handlers={"large": large}, max_frame_bytes=65536) as servers:
        with servers.connect() as store, pytest.raises(TooLargeError, match="70000"):
            store.command(0, "large")
    assert len(seen) == 1


def test_caller_hears_in_time_that_a_handler_is_still_at_work() -> None:
    done = threading.Event()

    def wait(command: _core.Command) -> None:
        done.wait(20)
        command.reply(b"")  # to nobody

    with NativeServers(handlers={"wait": wait}) as servers, servers.connect() as store:
        try:
            with pytest.raises(DeadlineError, match="handler is still running"):
                store.command(0, "wait", timeout_s=0.3)
        finally:
            done.set()


def test_server_that_stops_fails_commands_that_were_kept() -> None:
    kept: queue.Queue[_core.Command] = queue.Queue()
    servers = NativeServers(handlers={"keep": kept.put})
    with servers, servers.connect() as store:
        failures: list[BaseException] = []

        def call() -> None:
            try:
                store.command(0, "keep")
            except ShuttingDownError as error:
                failures.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        command = kept.get(timeout=20)
        servers.stop()
        caller.join(20)
        assert len(failures) == 1
        with pytest.raises(ShuttingDownError, match="the reply came too late"):
            command.reply(b"nobody waits for it")


def test_loop_that_is_stopped_lets_handlers_end_and_refuses_the_rest() -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(command: _core.Command) -> None:
        begun.set()
        done.wait(20)
        command.reply(b"done")

    with NativeServers(handlers={"slow": slow}) as servers, servers.connect() as store:
        answers: list[bytes] = []
        caller = threading.Thread(target=lambda: answers.append(store.command(0, "slow")))
        caller.start()
        begun.wait(20)
        loop = servers.loops[0]
        assert not loop.stop(timeout_s=0.01)
        with pytest.raises(ShuttingDownError):
            store.command(0, "slow")
        done.set()
        assert loop.stop()
        caller.join(20)
        assert answers == [b"done"]


def test_loop_never_started_stops_at_once() -> None:
    with NativeServers() as servers:
        servers.loops[0].stop()
        assert CommandLoop(servers.servers[0], {}).stop()


def test_unknown_server_and_a_local_store_are_refused() -> None:
    with NativeServers() as servers, servers.connect() as store:
        with pytest.raises(ConfigError, match="there is no server 1; the number of servers is 1"):
            store.command(1, "ping")
        with pytest.raises(ConfigError, match="command name of 0 bytes"):
            store.command(0, "")
    with LocalStore() as local, pytest.raises(ConfigError, match="no server to ask"):
        local.command(0, "ping")


class RecordedCommand:
    """A command that records its answer."""

    def __init__(
        self, name: str, head: dict[str, Any], data: bytes = b"", client: str = "w0"
    ) -> None:
        self.name, self.client, self.session = name, client, 1
        self.body = pack_body(head, data)
        self.answer = b""

    def reply(self, body: bytes) -> None:
        self.answer = body

    def fail(self, code: str, message: str) -> None:
        raise AssertionError(f"{code}: {message}")

    @property
    def answered(self) -> Answered:
        return Answered(self.name, self.client, self.session, self.body, self.answer)


class RecordedServer:
    """The log of a server: states and answered commands."""

    def __init__(self) -> None:
        self.log: list[tuple[bool, str, str, int, bytes, bytes]] = []

    def take_recovered_commands(self) -> list[tuple[bool, str, str, int, bytes, bytes]]:
        return self.log

    def append_command_state(self, name: str, state: bytes) -> None:
        self.log.append((True, name, "", 0, state, b""))

    def add(self, command: RecordedCommand) -> None:
        self.log.append((False, *command.answered))


def _mail(name: str, to: int = 1, data: bytes = b"", **more: Any) -> RecordedCommand:
    return RecordedCommand(f"mail.{name}", {"room": "r", "to": to, "wait_s": 0, **more}, data)


@pytest.mark.parametrize("written_after", [0, 1, 2, 3, 4])
def test_mailboxes_come_back_from_a_state_and_the_commands_after_it(written_after: int) -> None:
    states, mailboxes, server = CommandStates(), Mailboxes(), RecordedServer()
    states.add("mail.", mailboxes)
    states.recover(server)  # type: ignore[arg-type]
    commands = [
        _mail("put", data=b"first"),
        _mail("put", data=b"second"),
        _mail("take"),
        _mail("put", data=b"other third", letters=[[2, 6], [1, 5]]),
    ]
    for number, command in enumerate(commands):
        if number == written_after:
            states.write()
        mailboxes.handlers()[command.name](command)  # type: ignore[arg-type]
        server.add(command)
    after, recovered = Mailboxes(), CommandStates()
    recovered.add("mail.", after)
    recovered.recover(server)  # type: ignore[arg-type]
    take = _mail("take")
    after.take(take)
    assert unpack_body(take.answer) == ({"sizes": [5]}, b"third")
    other = _mail("take", to=2)
    after.take(other)
    assert unpack_body(other.answer) == ({"sizes": [6]}, b"other ")
    assert after.dump() != b""


def test_failed_and_closed_rooms_stay_so() -> None:
    mailboxes, after = Mailboxes(), Mailboxes()
    for command in (_mail("put", data=b"x"), _mail("close"), _mail("fail", reason="lost")):
        mailboxes.handlers()[command.name](command)  # type: ignore[arg-type]
        after.replay(command.answered)
    assert after.num_rooms == 0
    assert after.dump() == mailboxes.dump()


@pytest.mark.parametrize("written_after", [0, 1, 2, 3])
def test_work_lists_come_back_from_a_state_and_the_commands_after_it(written_after: int) -> None:
    server = RecordedServer()
    states = CommandStates()
    handlers = work_list_handlers(lambda _: True, states)
    states.recover(server)  # type: ignore[arg-type]
    files = [["a", []], ["b", []], ["c", []]]
    place = {"list": "day", "epoch": 1}
    commands = [
        RecordedCommand("work.begin", {**place, "num_workers": 1, "files": files}),
        RecordedCommand("work.take", {**place, "keep_going": False}),
        RecordedCommand("work.report", {**place, "marks": [["a", 0, 7, None]]}),
    ]
    for number, command in enumerate(commands):
        if number == written_after:
            states.write()
        handlers[command.name](command)  # type: ignore[arg-type]
        server.add(command)
    recovered = CommandStates()
    again = work_list_handlers(lambda _: True, recovered)
    recovered.recover(server)  # type: ignore[arg-type]
    taken = []
    for _ in range(3):
        take = RecordedCommand("work.take", {**place, "keep_going": False})
        again["work.take"](take)  # type: ignore[arg-type]
        taken.append(unpack_body(take.answer)[0]["path"])
    assert taken == ["b", "c", None]


def test_keepers_have_what_states_need() -> None:
    keeper: Keeper = Mailboxes()
    with keeper.hold():
        assert unpack_body(keeper.dump())[0] == {"boxes": [], "held": [], "failed": {}}
