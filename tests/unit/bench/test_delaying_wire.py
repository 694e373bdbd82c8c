from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from tests.unit.bench import bench_path  # noqa: F401

from delaying_wire import Wire

WAIT_S = 30.0


def test_packets_come_out_at_the_other_end_in_order_and_not_before_their_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
        os.write(writing, b"0.01\n")
        printed, deadline = "", time.monotonic() + WAIT_S
        while printed != "delayed\n":  # the delay is set
            assert time.monotonic() < deadline, printed
            printed += capsys.readouterr().out
        begin = time.monotonic()
        for number in range(100):
            near.send(bytes([number]))
        assert [far.recv(100) for _ in range(100)] == [bytes([number]) for number in range(100)]
        far.send(b"back")
        assert near.recv(100) == b"back"
        assert time.monotonic() - begin >= 0.02
        os.close(writing)
        serving.join(WAIT_S)
        assert not serving.is_alive()
    assert capsys.readouterr().out == ""
