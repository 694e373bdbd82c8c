"""Write plain values as YAML, to the extent that manifests need."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

__all__ = ["Value", "to_yaml"]

Value = str | int | bool | Mapping[str, "Value"] | Sequence["Value"]

# Plain in YAML 1.1 and 1.2: not a number, a boolean, null, a date or a flow collection.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./$()-]*")
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(value: Value) -> str:
    """Return a value as a YAML document in block style.

    >>> print(to_yaml({"a": ["x", {"b": 1, "c": "on"}], "d": {}}), end="")
    a:
    - x
    - b: 1
      c: "on"
    d: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    if isinstance(value, Mapping) and value:
        lines = []
        for key, entry in value.items():
            lines += _entry(f"{_scalar(key)}:", entry, indent="" if _is_list(entry) else "  ")
        return lines
    if _is_list(value) and value:
        assert isinstance(value, Sequence)
        lines = []
        for entry in value:
            first, *rest = _lines(entry)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _entry(start: str, value: Value, indent: str) -> list[str]:
    if not isinstance(value, str) and isinstance(value, (Mapping, Sequence)) and value:
        return [start, *(indent + line for line in _lines(value))]
    return [f"{start} {_scalar(value)}"]


def _is_list(value: Value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: Value) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if is_plain else json.dumps(value)
    return json.dumps(value)  # numbers, booleans, and empty collections
