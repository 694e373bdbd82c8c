"""Storage formats for row values in an exported model, and the errors that they introduce.

In shapes, N is the number of rows, D the row width.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, NonFiniteError
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["EncodedRows", "QuantizationError", "RowFormat", "decode_rows", "encode_rows"]

RowFormat = Literal["float32", "float16", "int8"]

_INT8_STEPS = 127
_MAX_FLOAT16 = float(np.finfo(np.float16).max)
# 127 times a scale that was rounded up must still fit into float32.
_MAX_INT8 = float(np.finfo(np.float32).max) * (1 - 2**-20)


class EncodedRows(NamedTuple):
    """Rows in their storage format."""

    values: NDArray[np.generic]
    """[N, D], with the dtype of the storage format"""
    scales: Floats | None
    """float32[N], the factor for each row's int8 values; None for other formats"""

    def take(self, places: slice | NDArray[np.int64]) -> EncodedRows:
        """Return the rows at these positions."""
        scales = None if self.scales is None else self.scales[places]
        return EncodedRows(self.values[places], scales)


class QuantizationError:
    """The largest and mean errors of stored values. Not thread-safe.

    >>> error = QuantizationError()
    >>> error.add(np.array([[1.0, 2.0]], np.float32), np.array([[1.0, 2.5]], np.float32))
    >>> error.largest, error.mean
    (0.5, 0.25)
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self._sum = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        """Return the mean error, rounded to nine digits so that it does not depend on row order."""
        return float(f"{self._sum / self._count:.9g}") if self._count else 0.0

    def add(self, values: Floats, read: Floats) -> None:
        """Add the absolute differences between `values` and `read`, float32[N, D] each."""
        if values.size:
            distance = np.abs(values.astype(np.float64) - read)
            self.largest = max(self.largest, float(distance.max()))
            self._sum += float(distance.sum())
            self._count += values.size


def check_format(rows: object) -> RowFormat:
    """Return `rows` if it names a valid format; otherwise raise ConfigError."""
    if rows not in get_args(RowFormat):
        wanted = ", ".join(map(repr, get_args(RowFormat)))
        raise ConfigError(f"rows must be one of {wanted}, got {rows!r}")
    return rows  # type: ignore[return-value]


def encode_rows(table: str, keys: Keys, values: Floats, row_format: RowFormat) -> EncodedRows:
    """Encode rows, float32[N, D]; `table` and `keys` (uint64[N]) are for error messages.

    For int8, each row has a scale: its largest absolute value divided by 127. Raises an error for
    rows that the format cannot represent.

    >>> encode_rows("ads", np.array([7], np.uint64), np.array([[0.5, -1.0]], np.float32), "int8")
    EncodedRows(values=array([[  64, -127]], dtype=int8), scales=array([0.00787402], dtype=float32))
    """
    if row_format == "float32":
        return EncodedRows(values, None)
    largest = np.abs(values).max(axis=1, initial=0.0)
    _check_range(table, keys, largest, row_format)
    if row_format == "float16":
        return EncodedRows(values.astype(np.float16), None)
    scales = (largest / _INT8_STEPS).astype(np.float32)
    steps = np.rint(values / np.where(scales == 0, 1, scales)[:, None])
    return EncodedRows(np.clip(steps, -_INT8_STEPS, _INT8_STEPS).astype(np.int8), scales)


def decode_rows(encoded: EncodedRows) -> Floats:
    """Decode the rows to float32[N, D]."""
    values = encoded.values.astype(np.float32, copy=False)
    return values if encoded.scales is None else values * encoded.scales[:, None]


def _check_range(table: str, keys: Keys, largest: Floats, row_format: RowFormat) -> None:
    limit = _MAX_FLOAT16 if row_format == "float16" else _MAX_INT8
    wrong = np.flatnonzero(~(largest <= limit))
    if wrong.size:
        key = int(keys[wrong[0]])
        raise NonFiniteError(
            f"table '{table}': the row of key {key} has the value {largest[wrong[0]]}, which "
            f"{row_format} cannot represent; export with rows='float32'"
        )
