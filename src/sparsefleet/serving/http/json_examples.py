"""Parse examples in JSON strictly: a number of the wrong kind is an error.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.hashing import hash_values
from sparsefleet.serving.export.manifest import InputSchema, Schema

__all__ = ["inputs_of_rows", "parse_json", "whole_numbers"]

_SHOWN = 8  # maximum number of names in a message
_INT64_MIN, _INT64_END, _KEYS_END = -(2**63), 2**63, 2**64


def parse_json(text: bytes) -> Any:
    """Parse JSON. Raises ValueError, including for NaN and duplicate names in an object."""
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def inputs_of_rows(rows: Sequence[Any], schema: Schema) -> dict[str, Any]:
    """Return the inputs by name, in the form that `Predictor.predict` takes.

    rows: one object per example with a field per input.

    Raises FeedError, which names the example and the input.

    >>> ads = InputSchema(name="ad", dtype="int64", shape=("batch",))
    >>> schema = Schema(inputs=(ads,), targets=(), lookups=())
    >>> inputs_of_rows([{"ad": 3}, {"ad": 2**64 - 1}], schema)
    {'ad': array([ 3, -1])}
    """
    names = {item.name for item in schema.inputs}
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise FeedError(
                f"example {at} must be an object with {', '.join(names)}, got {_shown(row)}"
            )
        if row.keys() != names:
            _raise_wrong_names(at, row.keys(), schema)
    return {
        item.name: _input([row[item.name] for row in rows], item, schema) for item in schema.inputs
    }


def _raise_wrong_names(at: int, given: Collection[str], schema: Schema) -> None:
    wanted = {item.name: item for item in schema.inputs}
    missing = [name for name in wanted if name not in given]
    more = [f"{name!r:.60}" for name in islice((n for n in given if n not in wanted), _SHOWN)]
    summary = [f"lacks {', '.join(missing)}"] if missing else []
    summary += [f"has unknown {', '.join(more)}"] if more else []
    described = "; ".join(map(str, schema.inputs))
    raise FeedError(f"example {at} {' and '.join(summary)}; the model takes {described}")


def _input(values: list[Any], item: InputSchema, schema: Schema) -> Any:
    """Convert the B values of one input, one per example."""
    hashed, filling = schema.hashing(item.name), schema.filling(item.name)
    if schema.takes_null(item.name):
        values = [_filled(value, item) for value in values]
    if item.is_ragged:
        lengths = _lengths(values, item, 1)
        flat: list[Any] = list(chain.from_iterable(values))
        tail = item.shape[1:]
    else:
        lengths, flat, tail = [], values, item.shape[1:]
    sizes: list[int] = []
    for depth, size in enumerate(tail):
        found = set(_lengths(flat, item, depth + 1 + item.is_ragged))
        wanted = {size} if isinstance(size, int) else found
        if found - wanted or len(found) > 1:
            raise FeedError(
                f"input '{item.name}' has lists of {_some(found)} values, expected {item}"
            )
        sizes.append(size if isinstance(size, int) else next(iter(found), 0))
        flat = list(chain.from_iterable(flat))
    width = math.prod(sizes)
    if hashed is not None:
        flat = hash_values(flat, hashed, 0 if item.is_ragged else width)
    if filling is not None:
        flat = [filling if value is None else value for value in flat]
    numbers = _numbers(flat, item, _Places(lengths if item.is_ragged else None, width))
    rows = sum(lengths) if item.is_ragged else len(values)
    array = numbers.reshape(rows, *sizes)
    if not item.is_ragged:
        return array
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return array, offsets if item.is_closed else offsets[:-1]


def _filled(value: Any, item: InputSchema) -> Any:
    """Replace a missing list with a list of missing values; return other values unchanged."""
    if value is not None or (not item.is_ragged and len(item.shape) == 1):
        return value
    sizes = [size for size in item.shape[1:] if isinstance(size, int)]
    return [None] if item.is_ragged else [None] * (sizes[0] if len(sizes) == 1 else 1)


class _Places(NamedTuple):
    """Records which example each value in a flat list belongs to."""

    lengths: list[int] | None
    """The lengths of ragged examples; None if all have `width` values."""
    width: int

    def example(self, at: int) -> int:
        if self.lengths is None:
            return at // max(self.width, 1)
        ends = np.cumsum(self.lengths) * max(self.width, 1)
        return int(np.searchsorted(ends, at, side="right"))


def _lengths(values: list[Any], item: InputSchema, depth: int) -> list[int]:
    for at, value in enumerate(values):
        if type(value) is not list:
            where = f"example {at}, " if depth == 1 else ""
            raise FeedError(
                f"{where}input '{item.name}' must be a list, got {_shown(value)}; expected {item}"
            )
    return list(map(len, values))


def _numbers(flat: list[Any], item: InputSchema, places: _Places) -> NDArray[Any]:
    dtype = np.dtype(item.dtype)
    if dtype.kind in "iu":
        flat = whole_numbers(flat)
    kinds = set(map(type, flat))
    allowed = {bool} if dtype.kind == "b" else {int} if dtype.kind in "iu" else {int, float}
    if kinds - allowed:
        at = next(at for at, value in enumerate(flat) if type(value) not in allowed)
        hint = ""
        if type(flat[at]) is str and dtype == np.int64:
            hint = "; strings need a model that was exported with features="
        raise FeedError(
            f"example {places.example(at)}, input '{item.name}' has the value {_shown(flat[at])}, "
            f"expected {item}{hint}"
        )
    if dtype.kind == "f":
        return _floats(flat, item, dtype)
    return _integers(flat, item, dtype, places)


def whole_numbers(values: list[Any]) -> list[Any]:
    """Convert floats without a fraction to integers, because JSON does not distinguish the two.

    >>> whole_numbers([3, 3.0, 3.5, True])
    [3, 3, 3.5, True]
    """
    if float not in set(map(type, values)):
        return values
    return [
        int(value) if type(value) is float and value.is_integer() else value for value in values
    ]


def _floats(flat: list[Any], item: InputSchema, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, np.float64).astype(dtype)
    except OverflowError:
        array = np.array([np.inf], dtype)
    if not np.isfinite(array).all():
        raise FeedError(f"input '{item.name}' has a number too large for {dtype}")
    return array


def _integers(
    flat: list[Any], item: InputSchema, dtype: np.dtype[Any], places: _Places
) -> NDArray[Any]:
    low, end = (_INT64_MIN, _KEYS_END) if dtype == np.int64 else _range_of(dtype)
    if flat and (min(flat) < low or max(flat) >= end):
        at = next(at for at, value in enumerate(flat) if not low <= value < end)
        raise FeedError(
            f"example {places.example(at)}, input '{item.name}': expected a value in "
            f"{low}..{end - 1}, got {_shown(flat[at])}"
        )
    if dtype == np.int64 and flat and max(flat) >= _INT64_END:  # keys keep their bits
        flat = [value - _KEYS_END if value >= _INT64_END else value for value in flat]
    return np.array(flat, dtype)


def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 2
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max) + 1


def _shown(value: Any) -> str:
    kind = {dict: "an object", list: "a list", type(None): "null"}.get(type(value))
    if kind is not None:
        return kind
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _some(lengths: set[int]) -> str:
    return f"{min(lengths)}" if len(lengths) == 1 else f"{min(lengths)} to {max(lengths)}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
        raise ValueError(f"{twice!r:.60} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)
