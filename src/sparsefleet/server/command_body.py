"""Bodies of commands: a small head as JSON, and bytes behind it.

Format: length of the head u32, head (UTF-8), bytes. Little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from sparsefleet.errors import ProtocolError

_LENGTH = struct.Struct("<I")


def pack_body(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """The body of a command or of a reply.

    >>> unpack_body(pack_body({"to": 1}, b"bytes"))
    ({'to': 1}, b'bytes')
    """
    text = json.dumps(head).encode()
    return b"".join([_LENGTH.pack(len(text)), text, data])


def unpack_body(body: bytes) -> tuple[dict[str, Any], bytes]:
    """What `pack_body` was given; ProtocolError if it is something else."""
    if len(body) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        if end <= len(body):
            try:
                head = json.loads(body[_LENGTH.size : end])
            except ValueError as error:
                raise ProtocolError(f"the head of a command is no JSON: {error}") from error
            if isinstance(head, dict):
                return head, body[end:]
    raise ProtocolError(f"a command of {len(body)} bytes has no head")
