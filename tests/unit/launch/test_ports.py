from __future__ import annotations

import socket
import sys

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.launch.job import PortReservation


def test_free_ports_differ_and_a_server_can_listen() -> None:
    with PortReservation() as ports:
        found = ports.take_free(5)
        assert len(set(found)) == 5
        for port in found:
            socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port is not held")
def test_held_port_is_kept_from_others_and_refuses_connections() -> None:
    with PortReservation() as ports:
        port = ports.take_free(1)[0]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))


def test_port_with_a_listener_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, PortReservation() as ports:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            ports.take(f"127.0.0.1:{port}")


def test_address_of_another_machine_is_left_to_the_server() -> None:
    with PortReservation() as ports:
        ports.take("192.0.2.1:9100")  # RFC 5737: reserved for documentation
