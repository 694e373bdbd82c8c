"""Converts the columns of Arrow record batches to the columns of a slot.

No value is handled individually in Python. Arrays are copied only if their memory belongs to Arrow,
or if their type differs from the slot's.

In shapes, B is the number of rows, N the number of values, and W the number of values per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.column_advice import missing_column_advice
from sparsefleet.data.field import Field
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.errors import SchemaError

BadRows = dict[int, tuple[str, str]]
"""Maps each bad row, counted from 0, to the column with the bad value and what is wrong with it."""

_FILL = "; give a Field(missing=...) to replace missing values"
Mask = NDArray[np.bool_]


class Converted(NamedTuple):
    """B rows of a slot. The values that `column` holds for bad rows are undefined."""

    column: TakenColumn
    bad: BadRows


class SlotColumns:
    """Reads one slot from the record batches of a file, after checking the file's schema."""

    def __init__(self, field: Field, schema: pa.Schema, path: str) -> None:
        self._field = field
        self._names = [str(name) for name in field.source]
        self._readers = {name: ValueReader(field) for name in self._names}
        kinds = [_storage_type(_find(schema, name, field, path)) for name in self._names]
        self._is_list = len(kinds) == 1 and is_list(kinds[0])
        for name, kind in zip(self._names, kinds, strict=True):
            self._check_type(kind, f"{path}: column '{name}' has type {kind}")

    def convert(self, batch: pa.RecordBatch) -> Converted:
        arrays = [_storage(batch.column(name)) for name in self._names]
        return self._convert_list(arrays[0]) if self._is_list else self._convert_flat(arrays)

    def _check_type(self, kind: pa.DataType, found: str) -> None:
        field = self._field
        values = "floats or ints" if field.dtype == "float" else "ints or strings"
        if field.hash_seed is not None:
            values = "strings"
        if not fits(field, kind.value_type if self._is_list else kind):
            raise SchemaError(f"{found}, but slot '{field.name}' needs {values}, or lists of them")
        if field.width > 1 and len(self._names) == 1 and not self._is_list:
            raise SchemaError(
                f"{found}, but slot '{field.name}' with shape {field.shape} needs lists of "
                f"{field.width} values, or {field.width} columns"
            )

    def _convert_flat(self, arrays: list[pa.Array]) -> Converted:
        bad: BadRows = {}
        seed = self._field.hash_seed or 0
        columns = [
            self._settle(array, name, (seed + place) % 2**64, bad)
            for place, (name, array) in enumerate(zip(self._names, arrays, strict=True))
        ]
        if self._field.shape is None:
            return Converted((columns[0], np.arange(len(arrays[0]) + 1, dtype=np.int64)), bad)
        values = columns[0].reshape(-1, 1) if len(columns) == 1 else np.stack(columns, axis=1)
        return Converted((values, None), bad)

    def _convert_list(self, array: pa.Array) -> Converted:
        bad: BadRows = {}
        name = self._names[0]
        offsets = _offsets_of(array)
        values = self._settle(array.flatten(), name, self._field.hash_seed or 0, bad, offsets)
        null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count > 0 else None
        if null is not None and self._field.missing is None:
            for row in np.flatnonzero(null):
                bad.setdefault(int(row), (name, f"expected a list, found null{_FILL}"))
        if self._field.shape is not None:
            return Converted((self._fixed(values, offsets, null, bad), None), bad)
        if null is not None and self._field.missing is not None:  # null becomes [missing]
            values = np.insert(values, offsets[:-1][null], self._filling())
            offsets[1:] += np.cumsum(null)
        return Converted((values, offsets), bad)

    def _fixed(
        self, values: NDArray[Any], offsets: NDArray[np.int64], null: Mask | None, bad: BadRows
    ) -> NDArray[Any]:
        """Return an array [B, W] of the values in B lists, each of which must have W values."""
        width = self._field.width
        lengths = np.diff(offsets)
        good = lengths == width
        if good.all():
            return values.reshape(-1, width)
        for row in np.flatnonzero(~good if null is None else ~(good | null)):
            what = f"expected a list of {width} values, found {lengths[row]}"
            bad.setdefault(int(row), (self._names[0], what))
        table = np.zeros((len(lengths), width), values.dtype)
        table[good] = values[np.repeat(good, lengths)].reshape(-1, width)
        if null is not None and self._field.missing is not None:
            table[null] = self._filling()
        return table

    def _settle(
        self,
        array: pa.Array,
        name: str,
        seed: int,
        bad: BadRows,
        offsets: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Return the values of an array, with missing values replaced; add unusable rows to `bad`.

        offsets: where each row starts, if the array holds the values of lists.
        """
        values, missing, too_large = self._readers[name].read(array, seed)
        if missing is not None and self._field.missing is not None:
            values[missing] = self._filling()
            missing = None
        for mask, wanted, hint in (
            (missing, "a value", _FILL),
            (too_large, "a number of at most 3.4e38", ""),
        ):
            for place in () if mask is None else np.flatnonzero(mask):
                row = place if offsets is None else np.searchsorted(offsets, place, "right") - 1
                shown = array[int(place)].as_py()
                found = "null" if shown is None else repr(shown)
                bad.setdefault(int(row), (name, f"expected {wanted}, found {found}{hint}"))
        return values

    def _filling(self) -> int | float:
        field = self._field
        filling = field.missing_float if field.dtype == "float" else field.missing_id
        assert filling is not None
        return filling


def _find(schema: pa.Schema, name: str, field: Field, path: str) -> pa.DataType:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        times = "no column" if not found else f"{len(found)} columns"
        raise SchemaError(
            f"{path}: {times} called '{name}', which slot '{field.name}' needs; the file has "
            f"{schema.names!r:.300}{'' if found else missing_column_advice(name, schema.names)}"
        )
    return schema.field(found[0]).type


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def is_list(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _offsets_of(array: pa.Array) -> NDArray[np.int64]:
    """Return where each list starts in `array.flatten()`, int64[B + 1]. A null is an empty list."""
    kind, num_rows = array.type, len(array)
    if pa.types.is_fixed_size_list(kind):
        lengths = np.full(num_rows, kind.list_size, np.int64)
    elif num_rows == 0:
        return np.zeros(1, np.int64)
    else:
        dtype = np.int64 if pa.types.is_large_list(kind) else np.int32
        end = array.offset + num_rows + 1
        borders = np.frombuffer(array.buffers()[1], dtype, end)[array.offset :].astype(np.int64)
        if array.null_count == 0:
            borders -= borders[0]
            return borders
        lengths = np.diff(borders)
    if array.null_count > 0:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Values(NamedTuple):
    """Values [N] in the dtype of a slot, with masks of the missing and of the unusable values."""

    values: NDArray[Any]
    missing: Mask | None
    """True for nulls, and for NaN in a float slot. None if no value is missing."""
    too_large: Mask | None
    """True for values that are infinite or exceed float32. None if all values are usable."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are strings or bytes."""
    types = pa.types
    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
            types.is_fixed_size_binary,
            getattr(types, "is_string_view", _never),
            getattr(types, "is_binary_view", _never),
        )
    )


def fits(field: Field, kind: pa.DataType) -> bool:
    """Return whether the slot accepts values of this type."""
    if pa.types.is_dictionary(kind):
        return fits(field, kind.value_type)
    if pa.types.is_null(kind):
        return True
    if is_text(kind):
        return field.dtype == "uint64"
    if field.hash_seed is not None:
        return False
    numeric = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return numeric or (field.dtype == "float" and pa.types.is_floating(kind))


class ValueReader:
    """Reads the values of one slot; caches the hashes of the last dictionary. Not thread-safe."""

    def __init__(self, field: Field) -> None:
        self._is_float = field.dtype == "float"
        self._dictionary: pa.Array | None = None
        self._seed = 0
        self._hashes = np.empty(0, np.int64)

    def read(self, array: pa.Array, seed: int) -> Values:
        """Return the values as a writable array. REQUIRES: fits(field, array.type)."""
        if pa.types.is_null(array.type):
            array = array.cast(pa.int8())
        if pa.types.is_dictionary(array.type) and (
            not is_text(array.type.value_type) or array.dictionary.null_count > 0
        ):
            array = array.dictionary_decode()
        missing = None
        if array.null_count > 0:
            missing = array.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_dictionary(array.type):
            return Values(self._hash_dictionary(array, missing, seed), missing, None)
        values = _hash(array, seed) if is_text(array.type) else _numbers(array)
        if self._is_float:
            return _as_floats(values, missing)
        return Values(_as_ids(values), missing, None)

    def _hash_dictionary(
        self, array: pa.DictionaryArray, missing: Mask | None, seed: int
    ) -> NDArray[np.int64]:
        """Hash each distinct string only once, even if several arrays share one dictionary."""
        texts = array.dictionary
        if self._dictionary is None or self._seed != seed or not _is_same(texts, self._dictionary):
            self._dictionary, self._seed, self._hashes = texts, seed, _hash(texts, seed)
        indices = _numbers(array.indices)
        if missing is not None:
            if len(texts) == 0:
                return np.zeros(len(array), np.int64)
            indices = np.where(missing, 0, indices)
        return self._hashes.take(indices)


def _is_same(left: pa.Array, right: pa.Array) -> bool:
    """Return whether both arrays use the same memory."""
    return (
        left.type == right.type
        and len(left) == len(right)
        and left.offset == right.offset
        and [buffer and buffer.address for buffer in left.buffers()]
        == [buffer and buffer.address for buffer in right.buffers()]
    )


def _as_ids(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype == np.uint64:
        values = values.view(np.int64)
    return values.astype(np.int64, copy=not values.flags.writeable)


def _as_floats(values: NDArray[Any], missing: Mask | None) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):
        floats = values.astype(np.float32, copy=not values.flags.writeable)
    if values.dtype.kind != "f":
        return Values(floats, missing, None)
    if missing is not None:
        floats[missing] = 0.0  # the memory of a null is undefined
    if np.isfinite(floats).all():
        return Values(floats, missing, None)
    nan, infinite = np.isnan(floats), np.isinf(floats)
    missing = nan if missing is None else missing | nan
    return Values(floats, missing if missing.any() else None, infinite if infinite.any() else None)


def _numbers(array: pa.Array) -> NDArray[Any]:
    """Return the values as stored in memory, as a NumPy array; entries for nulls are undefined."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    dtype = np.dtype(array.type.to_pandas_dtype())
    if len(array) == 0:
        return np.empty(0, dtype)
    end = array.offset + len(array)
    return np.frombuffer(array.buffers()[1], dtype, end)[array.offset :]


def _hash(array: pa.Array, seed: int) -> NDArray[np.int64]:
    kind = array.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        array = array.cast(pa.large_binary())
    wide = pa.types.is_large_binary(array.type)
    if len(array) == 0:
        return np.empty(0, np.int64)
    _, offsets, data = array.buffers()
    end = array.offset + len(array) + 1
    begins = np.frombuffer(offsets, np.int64 if wide else np.int32, end)[array.offset :]
    texts = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return _core.hash_texts(texts, begins, seed)


def _never(_: pa.DataType) -> bool:
    return False
