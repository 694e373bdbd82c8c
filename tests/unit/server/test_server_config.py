from __future__ import annotations

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.server import ServerConfig


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
    ],
)
def test_bad_field_is_refused_by_name(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"^ServerConfig\.{name} must be"):
        ServerConfig(**fields)  # type: ignore[arg-type]


def test_bad_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="endpoint 'here'"):
        ServerConfig(endpoint="here")
