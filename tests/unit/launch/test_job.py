"""The ports and the kept state of a job."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.launch import LaunchConfig
from sparsefleet.launch.job import KeptState, PortReservation
from sparsefleet.store.own_loop import own_loop_path


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


def state(place: Path, **fields: Any) -> KeptState:
    settings = {"script": __file__, "num_servers": 1, "num_workers": 2, "state_dir": str(place)}
    return KeptState(LaunchConfig(**{**settings, **fields}))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the directory of an interrupted job."""
    with state(tmp_path).opened() as kept:
        kept.begin("3f")
    return tmp_path


def test_a_job_is_continued_until_its_state_is_removed(begun: Path) -> None:
    with state(begun).opened() as kept:
        assert kept.job_id == "3f"
        kept.remove()
    with state(begun).opened() as kept:
        assert kept.job_id == ""


def test_a_loop_that_would_begin_again_is_not_continued(begun: Path) -> None:
    """Its data would be trained twice, since the servers keep the updates of the first time."""
    Path(own_loop_path(state(begun).logs, 1)).touch()
    for fields in ({}, {"restart": "all"}):
        with pytest.raises(ConfigError, match=r"worker 1 trained in a custom loop"):
            state(begun, **fields).opened().__enter__()
    with state(begun, restart="killed").opened() as kept:
        assert kept.job_id == "3f"
