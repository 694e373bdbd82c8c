"""Random changes of bytes and of JSON, for fuzz targets."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

__all__ = ["mutated_bytes", "mutated_json"]

TOKENS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, 1e308,
    "", "x", "\0", "../..", "/etc/passwd", "__import__('os')", "nan", "builtins.eval", "a" * 5000,
    [], {}, [[]], [[[[[[[[]]]]]]]], {"": None}, {"type": "planted", "context": None},
)  # fmt: skip
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def mutated_bytes(raw: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """Flip, overwrite, insert, delete, repeat or splice bytes at a few positions."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            size = draw.choice((1, 2, 4, 8))
            value = draw.choice(NUMBERS) % 256**size
            data[at : at + size] = value.to_bytes(size, draw.choice(("little", "big")))
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 3:
            del data[at : at + draw.choice((1, 2, 8, 64, 1024))]
        elif kind == 4:
            data[at:at] = data[at : at + draw.choice((4, 46, 300))]
        elif kind == 5:
            other = draw.choice(others)
            begin = draw.randrange(len(other) + 1)
            data[at : at + 64] = other[begin : begin + 64]
        else:
            del data[at:]
    return bytes(data)


def mutated_json(value: Any, draw: random.Random) -> Any:
    """Return a copy in which a few values are replaced, removed, moved or repeated."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        places = list(_places(value))
        if not places:
            return _token(draw)
        parent, key = draw.choice(places)
        kind = draw.randrange(6)
        if kind <= 2:
            parent[key] = _changed(parent[key], draw)
        elif kind == 3:
            del parent[key]
        elif kind == 4:
            other, at = draw.choice(places)
            parent[key] = json.loads(json.dumps(other[at]))
        elif isinstance(parent, list):
            parent.append(json.loads(json.dumps(parent[key])))
        else:
            parent[str(_token(draw))] = _token(draw)
    return value


def _changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.5:
        return value + draw.choice((-1, 1, 2**32, -(2**32)))
    if isinstance(value, str) and value and draw.random() < 0.5:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice(("", "(", "'", ".", "é", " ", value)) + value[at + 1 :]
    return _token(draw)


def _token(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(TOKENS))  # it may be changed later


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return all (container, key) pairs of a JSON value."""
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        keys: Any = one.keys() if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], (dict, list)):
                waiting.append(one[key])
    return found
