"""Arrow arrays into values of a slot. Letters: N values.

Nothing here looks at single values in Python; only buffers that are not ours to give away, and
types other than the slot's own, are copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.field import Field

Mask = NDArray[np.bool_]


class Values(NamedTuple):
    """Values [N] of a slot's dtype, with the places where they are none."""

    values: NDArray[Any]
    missing: Mask | None
    """Null, or NaN in a float slot; None: nowhere."""
    too_large: Mask | None
    """Infinite, or beyond float32; None: nowhere."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts or bytes."""
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
    """Whether values of this type can be those of the slot."""
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
    """Reads values of one slot; remembers the hashes of the last dictionary. Not thread-safe."""

    def __init__(self, field: Field) -> None:
        self._is_float = field.dtype == "float"
        self._dictionary: pa.Array | None = None
        self._seed = 0
        self._hashes = np.empty(0, np.int64)

    def read(self, array: pa.Array, seed: int) -> Values:
        """REQUIRES: fits(field, array.type). The values may be written to."""
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
        """Each distinct text is hashed once, also over several arrays with the same dictionary."""
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
    """Whether they are the same memory."""
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
        floats[missing] = 0.0  # what lies under a null may be anything
    if np.isfinite(floats).all():
        return Values(floats, missing, None)
    nan, infinite = np.isnan(floats), np.isinf(floats)
    missing = nan if missing is None else missing | nan
    return Values(floats, missing if missing.any() else None, infinite if infinite.any() else None)


def _numbers(array: pa.Array) -> NDArray[Any]:
    """The values as they lie in memory; under a null, anything."""
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
