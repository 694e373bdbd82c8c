"""States of commands: dumped, restored, and replayed from answered commands."""

from __future__ import annotations

from typing import Any

import pytest

from sparsefleet.server.command_loop import Answered, CommandStates, Keeper, pack_body, unpack_body
from sparsefleet.server.mailbox import Mailboxes
from sparsefleet.server.work_lists import work_list_handlers


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
