"""Read JSON objects strictly: each field exactly once, with the right type, and no others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sparsefleet.errors import ConfigError

__all__ = ["Fields", "JsonObject", "canonical", "check", "parse_object"]

JsonObject = dict[str, Any]
T = TypeVar("T")


def check(holds: bool, thing: str, wanted: str, found: object) -> None:
    """Raise ConfigError unless `holds` is true."""
    if not holds:
        shown = repr(found)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        raise ConfigError(f"{thing}: expected {wanted}, found {shown}")


def is_count(value: object) -> bool:
    """Return whether `value` is an int >= 0. A bool does not count as an int."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_json(value: object, thing: str) -> None:
    """Raise an error unless `value` survives a round trip through JSON."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            check(isinstance(key, str), thing, "text as keys", key)
            check_json(item, f"{thing}.{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            check_json(item, f"{thing}[{place}]")
    elif isinstance(value, float):
        check(math.isfinite(value), thing, "a finite number", value)
    else:
        check(value is None or isinstance(value, (bool, int, str)), thing, "plain JSON", value)


def canonical(value: object) -> bytes:
    """Return the canonical encoding of a JSON value, for checksums."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def parse_object(data: bytes, thing: str) -> JsonObject:
    """Parse a JSON object. Rejects duplicate fields, NaN and infinity."""

    def no_twins(pairs: Sequence[tuple[str, Any]]) -> JsonObject:
        found = dict(pairs)
        check(len(found) == len(pairs), thing, "each field once", [name for name, _ in pairs])
        return found

    def no_constant(text: str) -> None:
        check(False, thing, "finite numbers", text)

    try:
        value = json.loads(data, object_pairs_hook=no_twins, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{thing}: expected JSON, found invalid text: {error}") from error
    check(isinstance(value, dict), thing, "a JSON object", value)
    return dict(value)


class Fields:
    """Takes the fields of a JSON object one at a time."""

    def __init__(self, value: object, thing: str) -> None:
        check(isinstance(value, Mapping), thing, "an object", value)
        assert isinstance(value, Mapping)
        self._left = dict(value)
        self._thing = thing

    def _take(self, name: str) -> tuple[Any, str]:
        thing = f"{self._thing}.{name}"
        if name not in self._left:
            raise ConfigError(f"{thing}: required field is missing")
        return self._left.pop(name), thing

    def text(self, name: str) -> str:
        value, thing = self._take(name)
        check(isinstance(value, str), thing, "text", value)
        return str(value)

    def count(self, name: str) -> int:
        """Take a field whose value is an int >= 0."""
        value, thing = self._take(name)
        check(is_count(value), thing, "a whole number >= 0", value)
        return int(value)

    def mapping(self, name: str) -> JsonObject:
        value, thing = self._take(name)
        check(isinstance(value, dict), thing, "an object", value)
        return dict(value)

    def items(self, name: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
        """Take a field that holds a list, reading each item with `read(value, name)`."""
        value, thing = self._take(name)
        check(isinstance(value, list), thing, "a list", value)
        return tuple(read(item, f"{thing}[{place}]") for place, item in enumerate(value))

    def optional(self, name: str, read: Callable[[object, str], T]) -> T | None:
        """Take a field and read it with `read`, or return None if the field is null."""
        value, thing = self._take(name)
        return None if value is None else read(value, thing)

    def end(self) -> None:
        """Raise an error if the object has fields that were not taken."""
        check(not self._left, self._thing, "no other field", sorted(self._left))


def read_text(value: object, thing: str) -> str:
    check(isinstance(value, str), thing, "text", value)
    return str(value)


def read_count(value: object, thing: str) -> int:
    check(is_count(value), thing, "a whole number >= 0", value)
    assert isinstance(value, int)
    return value
