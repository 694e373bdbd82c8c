from __future__ import annotations

import pytest

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9100", "127.0.0.1", 9100),
        ("ps-0.job.svc:0", "ps-0.job.svc", 0),
        ("[::1]:65535", "::1", 65535),
        (" localhost:1 ", "localhost", 1),
        ("/run/job/server-0", "/run/job/server-0", 0),
    ],
)
def test_host_and_port_are_read_and_written_back(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host, port)
    assert str(endpoint) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9100",
        ":9100",
        "host",
        "host:",
        "host:port",
        "host:65536",
        "host:-1",
        "::1:9100",
        "a b:1",
    ],
)
def test_invalid_endpoints_are_refused_and_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_is_distinguished(host: str, loopback: bool) -> None:
    assert Endpoint(host, 1).is_loopback is loopback
