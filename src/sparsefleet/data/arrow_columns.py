"""Columns of Arrow record batches into columns of a slot. Letters: B rows, N values, W width."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.data.arrow_values import Mask, ValueReader, fits
from sparsefleet.data.field import Field
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.errors import SchemaError

BadRows = dict[int, tuple[str, str]]
"""By row from 0: the column, and what is wrong there."""

_FILL = "; Field(missing=...) would stand for it"


class Converted(NamedTuple):
    """B rows of a slot. What bad rows have in `column` means nothing."""

    column: TakenColumn
    bad: BadRows


class SlotColumns:
    """Reads one slot from the record batches of a file, whose schema it has checked."""

    def __init__(self, field: Field, schema: pa.Schema, path: str) -> None:
        self._field = field
        self._names = [str(name) for name in field.source]
        self._readers = {name: ValueReader(field) for name in self._names}
        kinds = [_storage_type(_find(schema, name, field, path)) for name in self._names]
        self._is_list = len(kinds) == 1 and _is_list(kinds[0])
        for name, kind in zip(self._names, kinds, strict=True):
            self._check_type(kind, f"{path}: column '{name}' has the type {kind}")

    def convert(self, batch: pa.RecordBatch) -> Converted:
        arrays = [_storage(batch.column(name)) for name in self._names]
        return self._convert_list(arrays[0]) if self._is_list else self._convert_flat(arrays)

    def _check_type(self, kind: pa.DataType, found: str) -> None:
        field = self._field
        values = "floats or ints" if field.dtype == "float" else "ints or texts"
        if field.hash_seed is not None:
            values = "texts"
        if not fits(field, kind.value_type if self._is_list else kind):
            raise SchemaError(f"{found}, but slot '{field.name}' wants {values}, or lists of them")
        if field.width > 1 and len(self._names) == 1 and not self._is_list:
            raise SchemaError(
                f"{found}, but slot '{field.name}' with shape {field.shape} wants lists of "
                f"{field.width} values, or so many columns"
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
        if null is not None and self._field.missing is not None:  # a list of that one value
            values = np.insert(values, offsets[:-1][null], self._filling())
            offsets[1:] += np.cumsum(null)
        return Converted((values, offsets), bad)

    def _fixed(
        self, values: NDArray[Any], offsets: NDArray[np.int64], null: Mask | None, bad: BadRows
    ) -> NDArray[Any]:
        """[B, W] from lists that should have W values each."""
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
        """The values of an array, missing ones filled, rows with others noted as bad.

        offsets: of rows, where the array has the values of lists.
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
            f"{path}: {times} called '{name}', which slot '{field.name}' wants; the file has "
            f"{schema.names!r:.300}"
        )
    return schema.field(found[0]).type


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _offsets_of(array: pa.Array) -> NDArray[np.int64]:
    """Where the lists begin in `array.flatten()`, int64[B + 1]; a null has no values there."""
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
