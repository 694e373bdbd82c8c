"""JSON forms. A form is a function that checks a JSON value and returns a rewritten copy.

A form defines what is allowed and rejects everything else. The copy contains only values that the
form has checked, so a later reader cannot find anything that was overlooked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "Form",
    "RefusedError",
    "boolean",
    "decimal",
    "fixed",
    "integer",
    "list_of",
    "mapping",
    "one_of",
    "optional",
    "record",
    "text",
    "tree_of",
    "union",
]

Form = Callable[[Any], Any]

_MOST_INTEGER = 1 << 63


class RefusedError(ValueError):
    """Raised for a value that a form does not allow; the message says where and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why
        self._path: list[str] = []

    def within(self, part: str) -> RefusedError:
        """Return this error with its location extended by the enclosing part."""
        self._path.insert(0, part)
        return self

    def __str__(self) -> str:
        return (
            f"{'.'.join(self._path).replace('.[', '[')}: {self._why}" if self._path else self._why
        )


def tree_of(raw: bytes | str) -> Any:
    """Parse a JSON document. Raises RefusedError for invalid JSON or a duplicate key."""
    try:
        return json.loads(raw, object_pairs_hook=_without_repeats)
    except RefusedError:
        raise
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the text is not JSON: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (repeated, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise RefusedError(f"an object contains the key {repeated!r:.80} twice")
    return found


def text(pattern: str, what: str) -> Form:
    """Return a form for strings that match `pattern` as a whole."""
    matches = re.compile(pattern).fullmatch

    def check(value: Any) -> Any:
        if not isinstance(value, str) or not matches(value):
            raise RefusedError(f"got {value!r:.200}, expected {what}")
        return value

    return check


def integer(value: Any) -> Any:
    """Check an integer that fits into 64 bits."""
    if type(value) is not int or not -_MOST_INTEGER <= value < _MOST_INTEGER:
        raise RefusedError(f"got {value!r:.80}, expected a 64-bit integer")
    return value


def decimal(value: Any) -> Any:
    """Check a number, or the name of a number that JSON cannot express, such as NaN."""
    if type(value) is int:
        return integer(value)
    if type(value) is not float and value not in ("Infinity", "-Infinity", "NaN"):
        raise RefusedError(f"got {value!r:.80}, expected a number")
    return value


def boolean(value: Any) -> Any:
    """Check a boolean."""
    if type(value) is not bool:
        raise RefusedError(f"got {value!r:.80}, expected true or false")
    return value


def one_of(*values: Any) -> Form:
    """Return a form for one of these values. The type must match too: true does not count as 1."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in values):
            raise RefusedError(f"got {value!r:.80}, expected {' or '.join(map(repr, values))}")
        return value

    return check


def fixed(value: Any) -> Form:
    """Return a form that accepts any value and replaces it with `value`."""
    return lambda _: value


def optional(form: Form) -> Form:
    """Return a form for null or a value that `form` accepts."""
    return lambda value: None if value is None else form(value)


def list_of(form: Form) -> Form:
    """Return a form for lists whose values all have the same form."""

    def check(value: Any) -> Any:
        if not isinstance(value, list):
            raise RefusedError(f"got {value!r:.80}, expected a list")
        found = []
        for item in value:
            try:
                found.append(form(item))
            except RefusedError as error:
                raise error.within(f"[{len(found)}]") from None
        return found

    return check


def mapping(key: Form, form: Form) -> Form:
    """Return a form for objects with arbitrary keys of one form and values of another."""

    def check(value: Any) -> Any:
        found = {}
        for name, item in _object(value).items():
            try:
                found[key(name)] = form(item)
            except RefusedError as error:
                raise error.within(name[:80]) from None
        return found

    return check


def record(**fields: Form) -> Form:
    """Return a form for objects with these optional fields; other fields are dropped."""

    def check(value: Any) -> Any:
        value, found = _object(value), {}
        for name, form in fields.items():
            if name in value:
                try:
                    found[name] = form(value[name])
                except RefusedError as error:
                    raise error.within(name) from None
        return found

    return check


def union(**kinds: Form) -> Form:
    """Return a form for objects with a single key that names the kind of the value."""

    def check(value: Any) -> Any:
        names = list(_object(value))
        if len(names) != 1 or names[0] not in kinds:
            raise RefusedError(f"the kind {', '.join(names)!r:.80} is not supported")
        try:
            return {names[0]: kinds[names[0]](value[names[0]])}
        except RefusedError as error:
            raise error.within(names[0]) from None

    return check


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(f"got {value!r:.80}, expected an object")
    return value
