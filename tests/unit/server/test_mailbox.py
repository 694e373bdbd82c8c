from __future__ import annotations

import threading
from typing import Any

import pytest

from sparsefleet.errors import ConfigError, NotOwnerError, PeerLostError, ProtocolError
from sparsefleet.server.command_loop import pack_body, unpack_body
from sparsefleet.server.mailbox import Mailboxes

LONG_S = 60.0


class Question:
    """A command that remembers its answer."""

    def __init__(self, data: bytes = b"", *, session: int = 1, **head: Any) -> None:
        self.session = session
        self.body = pack_body({"room": "r", "to": 0, "wait_s": LONG_S, **head}, data)
        self.answered = threading.Event()
        self.head: dict[str, Any] = {}
        self.data = b""
        self.failure = ""
        self.is_gone = False

    def reply(self, body: bytes) -> None:
        if self.is_gone:
            raise ConfigError("the command was answered before")
        self.head, self.data = unpack_body(body)
        self.answered.set()

    def fail(self, code: str, message: str) -> None:
        self.failure = f"{code}: {message}"
        self.answered.set()


def put(boxes: Mailboxes, letter: bytes, **head: Any) -> Question:
    question = Question(letter, **head)
    boxes.put(question)
    return question


def take(boxes: Mailboxes, **head: Any) -> Question:
    question = Question(**head)
    boxes.take(question)
    return question


def test_letters_come_in_order_to_the_one_they_are_for() -> None:
    boxes = Mailboxes()
    put(boxes, b"one")
    put(boxes, b"for another", to=1)
    put(boxes, b"three")
    mine = take(boxes)
    assert mine.head == {"sizes": [3, 5]}
    assert mine.data == b"onethree"
    assert take(boxes, to=1).data == b"for another"


def test_who_takes_first_waits_for_a_letter() -> None:
    boxes = Mailboxes()
    waiting = take(boxes)
    assert not waiting.answered.is_set()
    assert put(boxes, b"late").head == {"stored": True}
    assert waiting.data == b"late"


def test_a_letter_that_finds_room_when_the_one_before_is_too_late_is_answered_once() -> None:
    boxes = Mailboxes(capacity_bytes=10)
    put(boxes, b"123456")
    with boxes.hold():  # so that both time out at the same moment
        large, small = put(boxes, b"12345678", wait_s=0), put(boxes, b"12", wait_s=0)
    assert large.answered.wait(LONG_S)
    assert small.answered.wait(LONG_S)
    assert (large.head, small.head) == ({"stored": False}, {"stored": True})
    assert take(boxes, to=1, wait_s=0).answered.wait(LONG_S)  # time limits still hold
    assert take(boxes).data == b"12345612"


def test_mail_without_letters_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"mail has 0 bytes, which does not match"):
        put(Mailboxes(), b"", letters=[])


def test_a_full_box_holds_up_its_senders_only() -> None:
    boxes = Mailboxes(capacity_bytes=10)
    assert put(boxes, b"123456").answered.is_set()
    late = put(boxes, b"789ab")
    later = put(boxes, b"c")
    assert not late.answered.is_set()
    assert not later.answered.is_set()  # in the order in which they came
    assert put(boxes, b"123456", to=1).answered.is_set()
    assert take(boxes).data == b"123456"
    assert late.head == later.head == {"stored": True}
    assert take(boxes).data == b"789abc"


def put_all(boxes: Mailboxes, *letters: tuple[int, bytes], **head: Any) -> Question:
    sizes = [[to, len(letter)] for to, letter in letters]
    return put(boxes, b"".join(letter for _, letter in letters), letters=sizes, **head)


def test_letters_to_several_workers_are_stored_together() -> None:
    boxes = Mailboxes(capacity_bytes=10)
    first = put_all(boxes, (0, b"123456"), (1, b"x"), (0, b"7"))
    assert first.head == {"stored": True}
    waiting = put_all(boxes, (1, b"yz"), (0, b"89ab"))
    behind = put(boxes, b"!", to=1)
    assert not waiting.answered.is_set()  # worker 0 has no room
    assert not behind.answered.is_set()
    assert take(boxes, to=1).data == b"x"
    assert not waiting.answered.is_set()
    assert take(boxes).data == b"1234567"
    assert waiting.head == behind.head == {"stored": True}
    assert take(boxes, to=1).data == b"yz!"
    assert take(boxes).data == b"89ab"


def test_letters_that_were_not_stored_in_time_hold_up_nobody() -> None:
    boxes = Mailboxes(capacity_bytes=1)
    put(boxes, b"1")
    late = put_all(boxes, (0, b"2"), (1, b"a"), wait_s=0.05)
    behind = put(boxes, b"b", to=1)
    assert late.answered.wait(LONG_S)
    assert late.head == {"stored": False}
    assert behind.answered.wait(LONG_S)
    assert take(boxes, to=1).data == b"b"


def test_letters_must_add_up() -> None:
    with pytest.raises(ProtocolError, match="does not match the letter sizes"):
        put(Mailboxes(), b"abc", letters=[[0, 1]])


def test_a_check_is_held_until_the_box_closes_its_time_is_up_or_the_room_fails() -> None:
    boxes = Mailboxes()
    closing, short, failing = Question(), Question(to=1, wait_s=0.01), Question(to=2)
    for question in (closing, short, failing):
        boxes.check(question)
    assert short.answered.wait(LONG_S)
    assert not closing.answered.is_set()
    boxes.close(Question())
    assert closing.answered.is_set()
    boxes.fail(Question(reason="worker 3: no memory"))
    assert failing.failure == "PEER_LOST: worker 3: no memory"
    with pytest.raises(PeerLostError, match="no memory"):
        boxes.check(Question())
    assert boxes.num_rooms == 0


def test_a_letter_larger_than_the_box_goes_alone() -> None:
    boxes = Mailboxes(capacity_bytes=10)
    assert put(boxes, b"x" * 100).answered.is_set()
    waiting = put(boxes, b"y")
    assert not waiting.answered.is_set()
    assert take(boxes).data == b"x" * 100
    assert waiting.answered.is_set()


def test_waits_end_with_their_time() -> None:
    boxes = Mailboxes(capacity_bytes=1)
    nothing = take(boxes, wait_s=0.01)
    assert nothing.answered.wait(LONG_S)
    assert nothing.head == {"sizes": []}
    put(boxes, b"1")
    full = put(boxes, b"2", wait_s=0.01)
    assert full.answered.wait(LONG_S)
    assert full.head == {"stored": False}
    assert take(boxes).data == b"1"
    assert not take(boxes).answered.is_set()  # what was refused is not stored


def test_a_room_that_fails_wakes_all_and_lets_nobody_in() -> None:
    boxes = Mailboxes(capacity_bytes=1)
    put(boxes, b"1")
    putting, taking = put(boxes, b"2"), take(boxes, to=1)
    failing = Question(reason="worker 3: no memory")
    boxes.fail(failing)
    assert failing.answered.is_set()
    for question in (putting, taking):
        assert question.failure == "PEER_LOST: worker 3: no memory"
    with pytest.raises(PeerLostError, match="worker 3: no memory"):
        put(boxes, b"4")
    with pytest.raises(PeerLostError, match="worker 3: no memory"):
        take(boxes)
    assert put(boxes, b"5", room="another").answered.is_set()


def test_commands_that_wait_at_a_box_fail_at_once_when_it_closes() -> None:
    boxes = Mailboxes(capacity_bytes=4)
    put(boxes, b"full")
    put(boxes, b"full", to=1)
    to_both = put_all(boxes, (0, b"ab"), (1, b"cd"))
    behind = put(boxes, b"e", to=1)
    alone = put(boxes, b"f")
    assert take(boxes, to=1).data == b"full"
    assert not behind.answered.is_set()
    boxes.close(Question())
    assert to_both.failure == alone.failure == "NOT_FOUND: 'r': worker 0 has closed its mailbox"
    assert behind.head == {"stored": True}
    taking = take(boxes, to=2)
    boxes.close(Question(to=2))
    assert taking.failure == "NOT_FOUND: 'r': worker 2 has closed its mailbox"
    assert take(boxes, to=1).data == b"e"


def test_rooms_are_forgotten_when_all_have_closed() -> None:
    boxes = Mailboxes()
    put(boxes, b"1")
    put(boxes, b"2", to=1)
    assert boxes.num_rooms == 1
    boxes.close(Question())
    boxes.close(Question(to=1))
    boxes.close(Question(to=1))
    assert boxes.num_rooms == 0
    for number in range(2000):
        boxes.fail(Question(room=f"failed {number}", reason="x"))
    assert len(boxes._failed) == 1024


def test_a_letter_is_kept_if_its_taker_has_gone() -> None:
    boxes = Mailboxes()
    gone = take(boxes)
    gone.is_gone = True
    put(boxes, b"kept")
    assert take(boxes).data == b"kept"


def test_a_box_belongs_to_the_session_that_takes_from_it_while_it_is_alive() -> None:
    alive = {1, 2}
    boxes = Mailboxes(has_session=alive.__contains__)
    assert take(boxes, wait_s=0).answered.wait(LONG_S)
    put(boxes, b"mine", session=2)  # anybody may send
    for call in (boxes.take, boxes.close):
        with pytest.raises(NotOwnerError, match="mail of worker 0 belongs to session 1"):
            call(Question(session=2))
    assert take(boxes).data == b"mine"
    alive.remove(1)
    put(boxes, b"late")
    assert take(boxes, session=2).data == b"late"
    boxes.close(Question(session=2))
    boxes.close(Question(session=1))  # nobody holds it now
    assert boxes.num_rooms == 0


def test_commands_that_make_no_sense_are_refused() -> None:
    boxes = Mailboxes()
    with pytest.raises(ProtocolError, match="needs a room"):
        put(boxes, b"", room=3)
    with pytest.raises(ProtocolError, match="wait_s must be"):
        take(boxes, wait_s="long")
    question = Question()
    for body in (b"", b"\xff\xff\xff\xff{}", pack_body({})[:-1], b"\x02\0\0\0[]", b"\1\0\0\0x"):
        question.body = body
        with pytest.raises(ProtocolError):
            boxes.put(question)
