"""The address a server listens on: "host:port"."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from sparsefleet.errors import ConfigError

__all__ = ["Endpoint", "host_of", "is_local_name", "parse_endpoint"]

_AUTHORITY = re.compile(r"(\[[^\[\]]+\]|[^:\[\]/@]+)(?::\d{0,5})?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port. `str()` returns "host:port", or "[host]:port" for IPv6.

    >>> str(Endpoint("::1", 9100)), Endpoint("::1", 9100).is_loopback
    ('[::1]:9100', True)
    """

    host: str
    """A host name or address, without brackets, or the absolute path of a file that holds
    "host:port", with port 0."""

    port: int
    """0..65535; 0 lets a server choose a free port."""

    def __str__(self) -> str:
        if self.is_file:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_file(self) -> bool:
        """Return whether this is the path of a file that holds the address.

        Clients read the file again if a connection fails.
        """
        return self.host.startswith("/")

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_endpoint(text: str) -> Endpoint:
    """Parse "host:port", "[v6]:port" or "/path".

    >>> parse_endpoint("10.0.0.7:9100")
    Endpoint(host='10.0.0.7', port=9100)
    """
    if text.strip().startswith("/"):
        return Endpoint(text.strip(), 0)
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"endpoint {text!r}: put an IPv6 address in brackets, [::1]:9100")
    if not separator or not host or any(letter.isspace() for letter in host):
        raise ConfigError(f"endpoint {text!r} must be HOST:PORT, for example 127.0.0.1:9100")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"endpoint {text!r}: the port must be a number in 0..65535, got {port!r}")
    return Endpoint(host, int(port))


def host_of(authority: str) -> str | None:
    """Return the host from a Host header in lower case, without the port, or None if malformed.

    >>> host_of("Example.com:80"), host_of("[::1]"), host_of("a/b")
    ('example.com', '[::1]', None)
    """
    found = _AUTHORITY.fullmatch(authority)
    return found[1].lower().rstrip(".") if found else None


def is_local_name(authority: str) -> bool:
    """Return whether a Host header holds an IP address or localhost, which DNS cannot redirect.

    >>> is_local_name("localhost:80"), is_local_name("[::1]"), is_local_name("evil.test")
    (True, True, False)
    """
    host = host_of(authority)
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
