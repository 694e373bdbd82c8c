"""The bytes in which metrics travel and are kept. Layout: docs/metrics.md.

No pickle: a JSON header that names the metric and its settings, then plain little-endian numbers.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass

from sparsefleet.errors import ConfigError

Settings = dict[str, int | float | str | list[str] | None]

# Format: magic, version, length of the header, length of the payload; CRC-32 of all is at the end.
_PREFIX = struct.Struct("<4sIIQ")
_CRC = struct.Struct("<I")
_MAGIC = b"SFMT"
_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One packed state, taken apart."""

    kind: str
    """Name of the class."""

    settings: Settings
    """Arguments of its constructor."""

    payload: memoryview
    """What it has counted."""


def pack(kind: str, settings: Settings, payload: bytes) -> bytes:
    """One frame as bytes; equal arguments give equal bytes."""
    header = json.dumps(
        {"metric": kind, "settings": settings}, sort_keys=True, separators=(",", ":")
    ).encode()
    head = _PREFIX.pack(_MAGIC, _VERSION, len(header), len(payload)) + header
    return b"".join((head, payload, _CRC.pack(zlib.crc32(payload, zlib.crc32(head)))))


def unpack(state: bytes | memoryview) -> Frame:
    """The frame of `pack`; anything else raises ConfigError."""
    frames = unpack_all(state)
    if len(frames) != 1:
        raise ConfigError(f"metric state: {len(frames)} frames found, wanted 1")
    return frames[0]


def unpack_all(state: bytes | memoryview) -> list[Frame]:
    """The frames that lie one after the other in `state`."""
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise ConfigError(f"metric state: must be bytes, got {type(state).__name__}")
    rest = memoryview(state).cast("B")
    frames = []
    while len(rest) > 0:
        frame, rest = _unpack_first(rest)
        frames.append(frame)
    return frames


def require_alike(found: tuple[str, Settings], wanted: tuple[str, Settings]) -> None:
    """Raises ConfigError unless both are the same metric with the same settings."""
    if found != wanted:
        raise ConfigError(f"cannot merge {describe(*found)} into {describe(*wanted)}")


def describe(kind: str, settings: Settings) -> str:
    """As the constructor would be written.

    >>> describe("AUC", {"num_thresholds": 4095, "curve": "ROC"})
    "AUC(num_thresholds=4095, curve='ROC')"
    """
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _unpack_first(state: memoryview) -> tuple[Frame, memoryview]:
    if len(state) < _PREFIX.size or bytes(state[:4]) != _MAGIC:
        raise ConfigError(f"metric state: {len(state)} bytes that do not start as one")
    _, version, header_size, payload_size = _PREFIX.unpack_from(state)
    if version != _VERSION:
        raise ConfigError(f"metric state: version {version}, this is version {_VERSION}")
    payload_start = _PREFIX.size + header_size
    end = payload_start + payload_size
    if len(state) < end + _CRC.size:
        raise ConfigError(f"metric state: cut at {len(state)} of {end + _CRC.size} bytes")
    if zlib.crc32(state[:end]) != _CRC.unpack_from(state, end)[0]:
        raise ConfigError("metric state: checksum is wrong, the bytes were damaged")
    kind, settings = _parse_header(bytes(state[_PREFIX.size : payload_start]))
    frame = Frame(kind=kind, settings=settings, payload=state[payload_start:end])
    return frame, state[end + _CRC.size :]


def _parse_header(text: bytes) -> tuple[str, Settings]:
    try:
        header = json.loads(text)
        kind, settings = header["metric"], header["settings"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"metric state: header {text[:80]!r} cannot be read") from None
    if not (isinstance(kind, str) and isinstance(settings, dict)):
        raise ConfigError(f"metric state: header {text[:80]!r} cannot be read")
    return kind, settings
