from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from tests.unit.bench import bench_path  # noqa: F401

from delaying_wire import Wire

WAIT_S = 30.0


@contextmanager
def wire_between(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a wire that has been given this command."""
    printed: SimpleQueue[str] = SimpleQueue()
    # Captured output could lose what a thread prints while the test reads it.
    monkeypatch.setattr("delaying_wire.print", lambda text, **_: printed.put(text), raising=False)
    near, near_wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far, far_wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    with near, near_wire, far, far_wire, os.fdopen(reading) as commands:
        for end in (near_wire, far_wire):
            end.setblocking(False)
        far.settimeout(WAIT_S)
        near.settimeout(WAIT_S)
        wire = Wire((near_wire.fileno(), far_wire.fileno()))
        serving = threading.Thread(target=wire.serve, args=(commands,))
        serving.start()
        os.write(writing, f"{setting}\n".encode())
        assert printed.get(timeout=WAIT_S) == "delayed"  # the wire is set
        yield near, far
        os.close(writing)
        serving.join(WAIT_S)
        assert not serving.is_alive()
    assert printed.empty()


def test_packets_come_out_at_the_other_end_in_order_and_not_before_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with wire_between("0.01", monkeypatch) as (near, far):
        begin = time.monotonic()
        for number in range(100):
            near.send(bytes([number]))
        assert [far.recv(100) for _ in range(100)] == [bytes([number]) for number in range(100)]
        far.send(b"back")
        assert near.recv(100) == b"back"
        assert time.monotonic() - begin >= 0.02


def test_each_way_carries_no_more_bits_per_second_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packets = [bytes([number]) * 1000 for number in range(10)]
    with wire_between("0.01 1e6", monkeypatch) as (near, far):
        begin = time.monotonic()
        for packet in packets:
            near.send(packet)
            far.send(packet)
        assert [far.recv(1000) for _ in packets] == packets
        took_s = time.monotonic() - begin
        assert [near.recv(1000) for _ in packets] == packets
        assert took_s >= 8 * 10_000 / 1e6 + 0.01
