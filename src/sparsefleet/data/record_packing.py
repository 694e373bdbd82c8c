"""Python records into columns, checked. Letters: B records, N values, W width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.field import Field
from sparsefleet.data.hashing import hash64
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.errors import DataError

_TEXTS = (str, bytes)


class MismatchError(DataError, ValueError):
    """A record that is not as its slots say."""

    def __init__(self, column: str, what: str) -> None:
        super().__init__(f"column {column}: {what}")
        self.column = column
        self.what = what


class RecordPacker:
    """Packs records or batches with these slots; raises MismatchError if one is not as it should.

    A record, or a batch, is a mapping by slot, or a list or tuple in the order of slots.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._names = [field.name for field in fields]
        self._name_set = set(self._names)

    def pack_records(self, records: Sequence[Any]) -> list[TakenColumn]:
        """Columns of B records."""
        rows = [self._values_by_slot(record) for record in records]
        columns = zip(*rows, strict=True)
        return [
            _pack_slot(field, list(values))
            for field, values in zip(self._fields, columns, strict=True)
        ]

    def pack_batch(self, batch: Any) -> tuple[list[TakenColumn], int]:
        """Columns of a batch of B records that were columns already, and B.

        A slot with a shape is an array [B, *shape], one without (values [N], offsets [B + 1]).
        """
        columns = [
            _check_column(field, column)
            for field, column in zip(self._fields, self._values_by_slot(batch), strict=True)
        ]
        sizes = [
            len(values) if offsets is None else len(offsets) - 1 for values, offsets in columns
        ]
        for field, size in zip(self._fields, sizes, strict=True):
            if size != sizes[0]:
                raise _mismatch(field, f"{sizes[0]} records, as '{self._names[0]}' has", size)
        return columns, sizes[0]

    def _values_by_slot(self, record: Any) -> Sequence[Any]:
        names = self._names
        if isinstance(record, Mapping):
            if record.keys() != self._name_set:
                raise MismatchError(
                    f"'{min(self._name_set ^ record.keys(), key=str)}'",
                    f"expected a value for each of {names}, found {list(record)!r:.200}",
                )
            return [record[name] for name in names]
        if not isinstance(record, (list, tuple)) or len(record) != len(names):
            size = f" of {len(record)}" if isinstance(record, (list, tuple)) else ""
            raise MismatchError(
                f"'{names[0]}'",
                f"expected a dict, or a tuple of {len(names)} values, found a "
                f"{type(record).__name__}{size}",
            )
        return record


def _pack_slot(field: Field, values: list[Any]) -> TakenColumn:
    """values: of each record; a number or text, or a list, tuple or array of them."""
    if field.shape == ():
        return _numbers(field, values).reshape(-1, 1), None
    lists = [_as_list(field, value) for value in values]
    flat = _numbers(field, [value for one in lists for value in one])
    lengths = np.fromiter((len(one) for one in lists), np.int64, len(lists))
    if field.shape is not None:
        for length in lengths[lengths != field.width]:
            raise _mismatch(field, f"{field.width} values", int(length))
        return flat.reshape(-1, field.width), None
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return flat, offsets


def _as_list(field: Field, value: Any) -> Sequence[Any]:
    if value is None and field.missing is not None:
        return [None] * max(field.width, 1)
    if hasattr(value, "__array__") and np.ndim(value) > 0:
        array = np.asarray(value)
        value = array.reshape(-1).tolist() if field.shape is not None else array.tolist()
    if isinstance(value, (list, tuple)):
        return value
    if value is None or not (np.isscalar(value) or isinstance(value, _TEXTS)):
        raise _mismatch(field, "a list of values", value)
    return [value]


def _numbers(field: Field, values: list[Any]) -> NDArray[Any]:
    if field.missing is not None:
        values = [field.missing if value is None else value for value in values]
    if field.dtype != "float" and field.hash_seed is not None:
        return _ids(field, values)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # lists in lists, of several lengths
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise _mismatch(field, "numbers, not lists in lists", values[0])
    if field.dtype != "float":
        # NumPy makes floats of ids that no one type of its own holds.
        return _ids(field, values) if array.dtype.kind not in "iub" else _check_ids(field, array)
    if array.dtype.kind not in "fiub":
        odd = (value for value in values if not isinstance(value, (int, float, np.number)))
        raise _mismatch(field, "a number", next(odd, values[0]))
    return _check_floats(field, array)


def _ids(field: Field, values: list[Any]) -> NDArray[np.int64]:
    """Texts, or numbers of which some need all 64 bits, or both."""
    seed = field.hash_seed or 0
    ids = np.empty(len(values), np.uint64)
    for place, value in enumerate(values):
        if isinstance(value, _TEXTS):
            ids[place] = hash64(value, seed)
        elif field.hash_seed is not None and value != field.missing:
            raise _mismatch(field, "a text", value)
        elif isinstance(value, (int, np.integer)) and -(2**63) <= value < 2**64:
            ids[place] = int(value) % 2**64
        else:
            raise _mismatch(field, "an id of 64 bits or a text", value)
    return ids.view(np.int64)


def _check_ids(field: Field, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind not in "iub" and len(array) > 0:
        raise _mismatch(field, "an id of 64 bits or a text", array[0].item())
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64, copy=False)


def _check_floats(field: Field, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32, copy=False)
    good = np.isfinite(floats)
    if good.all():
        return floats
    if field.missing is not None:
        floats[np.isnan(array)] = field.missing
        good |= np.isnan(array)
    if not good.all():
        raise _mismatch(field, "a finite number of at most 3.4e38", array[~good][0].item())
    return floats


def _check_column(field: Field, column: Any) -> TakenColumn:
    if field.shape is None:
        if not isinstance(column, tuple) or len(column) != 2:
            raise _mismatch(field, "a pair (values [N], offsets [B + 1])", type(column).__name__)
        values, offsets = _array(field, column[0]), np.asarray(column[1])
        rises = (
            offsets.ndim == 1
            and offsets.dtype.kind in "iu"
            and len(offsets) >= 1
            and offsets[0] == 0
            and offsets[-1] == len(values)
            and bool((offsets[1:] >= offsets[:-1]).all())
        )
        if not rises:
            wanted = f"offsets that rise from 0 to the {len(values)} values"
            raise _mismatch(field, wanted, offsets.tolist()[:10])
        return values, offsets.astype(np.int64, copy=False)
    array = np.asarray(column)
    if array.shape[1:] != field.shape or array.ndim == 0:
        raise _mismatch(field, f"an array [B, *{field.shape}]", f"shape {array.shape}")
    return _array(field, array.reshape(-1)).reshape(len(array), field.width), None


def _array(field: Field, values: Any) -> NDArray[Any]:
    """A copy: whoever made the batch may use its memory again."""
    array = np.array(values)
    if array.ndim != 1:
        raise _mismatch(field, "an array with one dimension", f"shape {array.shape}")
    if field.dtype != "float":
        is_text = array.dtype.kind in "USO" or field.hash_seed is not None
        return _ids(field, array.tolist()) if is_text else _check_ids(field, array)
    if array.dtype.kind not in "fiub":
        raise _mismatch(field, "numbers", f"dtype {array.dtype}")
    return _check_floats(field, array)


def _mismatch(field: Field, wanted: str, found: object) -> MismatchError:
    return MismatchError(f"'{field.name}'", f"expected {wanted}, found {found!r:.100}")
