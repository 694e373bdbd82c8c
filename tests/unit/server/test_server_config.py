from __future__ import annotations

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.server import ServerConfig
from sparsefleet.server.run_server import durable_settings


def test_default_is_this_machine_only_and_encrypted() -> None:
    config = ServerConfig()
    assert config.endpoint.startswith("127.0.0.1:")
    assert config.transport == "auto"


@pytest.mark.parametrize(
    "fields",
    [
        {"index": 1},
        {"index": -1},
        {"num_servers": 0},
        {"transport": "TLS"},
        {"num_threads": -1},
        {"max_connections": 0},
        {"max_unproven_connections": -1},
        {"max_unproven_per_address": -1},
        {"max_frame_bytes": 1000},
        {"max_frame_bytes": 2**32},
        {"peer_timeout_s": 0},
        {"handshake_timeout_s": 0},
        {"drain_timeout_s": float("inf")},
        {"replica_wait_s": -1.0},
        {"durability": "copy"},
    ],
)
def test_bad_field_is_refused_by_name(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"^ServerConfig\.{name} must be"):
        ServerConfig(**fields)  # type: ignore[arg-type]


def test_bad_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="endpoint 'here'"):
        ServerConfig(endpoint="here")


def test_replica_needs_an_address() -> None:
    with pytest.raises(ConfigError, match=r"^ServerConfig\.replica must be the HOST:PORT"):
        ServerConfig(durability="replica", log_dir="log")
    with pytest.raises(ConfigError, match="endpoint 'there'"):
        ServerConfig(durability="replica", log_dir="log", replica="there")


def test_replica_of_a_server_comes_from_the_environment() -> None:
    environ = {"SPARSEFLEET_DURABILITY": "replica", "SPARSEFLEET_REPLICAS": "a:1,b:2"}
    assert durable_settings(1, environ)["replica"] == "b:2"
    assert durable_settings(1, {"SPARSEFLEET_REPLICAS": "a:1"})["replica"] == "a:1"
    assert durable_settings(1, {})["replica"] == ""
