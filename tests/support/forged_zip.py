"""Zip files in which every header field can be forged."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Contents = dict[str, bytes]
"""The entries of an archive by name."""


def entries_of(path: Path) -> Contents:
    """Return the contents of an archive by name."""
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


@dataclass
class Entry:
    """An entry of a zip file; every field of its headers can be forged."""

    name: str
    data: bytes = b""
    flags: int = 0
    method: int = 0
    attributes: int = 0
    listed: bool = True
    descriptor: bytes = b""
    local: dict[str, Any] = field(default_factory=dict)
    """Other values in the local header: name, size, packed, crc, extra."""
    central: dict[str, Any] = field(default_factory=dict)
    """Other values in the directory: name, size, packed, crc, extra, offset."""


def zip_of(
    entries: list[Entry], *, prefix: bytes = b"", end: dict[str, Any] | None = None
) -> bytes:
    """Return a zip file; `end` overrides fields of its end record: start, size, count, comment."""
    body, offsets = bytearray(prefix), []
    for entry in entries:
        offsets.append(len(body))
        body += _header(entry, entry.local, b"PK\3\4\x14\0") + entry.data + entry.descriptor
    start = len(body)
    for entry, offset in zip(entries, offsets, strict=True):
        if entry.listed:
            body += _header(entry, {"offset": offset, **entry.central}, b"PK\1\2\x14\0\x14\0")
    told = {"start": start, "size": len(body) - start, "comment": b"", **(end or {})}
    told.setdefault("count", sum(entry.listed for entry in entries))
    count, comment = told["count"], told["comment"]
    body += told.get("before", b"")
    body += struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, count, count, told["size"], told["start"], len(comment)
    )
    return bytes(body + comment + told.get("after", b""))


def _header(entry: Entry, other: dict[str, Any], start: bytes) -> bytes:
    raw = zlib.decompress(entry.data, -15) if entry.method == 8 else entry.data
    name, extra = other.get("name", entry.name).encode(), other.get("extra", b"")
    fields = struct.pack(
        "<4H3L2H",
        *(entry.flags, entry.method, 0, 0),
        other.get("crc", zlib.crc32(raw)),
        other.get("packed", len(entry.data)),
        other.get("size", len(raw)),
        *(len(name), len(extra)),
    )
    if "offset" in other:
        fields += struct.pack("<3H2L", 0, 0, 0, entry.attributes, other["offset"])
    return start + fields + name + extra


def plain(contents: Contents) -> list[Entry]:
    return [Entry(name, raw) for name, raw in contents.items()]


def zip64_extra(*values: int) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)
