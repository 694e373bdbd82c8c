"""Columns as the parser left them into a batch as the model wants it.

Letters: B records, N values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError


class Arrangement:
    """A batch is the columns, or (columns, label) where a column is the label; all are views.

    left_out: columns that do not go into batches.
    """

    def __init__(
        self,
        columns: tuple[Slot, ...],
        label: str | None,
        config: ReaderConfig,
        *,
        left_out: Collection[str] = (),
    ) -> None:
        self._columns = columns
        self._left_out = frozenset(left_out)
        self._label = label
        self._as_tuple = config.layout == "tuple"
        self._include_last_offset = config.include_last_offset
        names = [slot.name for slot in columns if slot.name not in self._left_out]
        if label is None:
            return
        if label not in names:
            raise ConfigError(f"label must be one of the columns {names}, got {label!r}")
        if len(names) == 1:
            raise ConfigError(f"the label '{label}' is the only column: there is no input")

    def arrange(self, taken: list[TakenColumn], num_records: int) -> Any:
        """The batch of `num_records` records."""
        named = {
            slot.name: self._column(slot, values, offsets, num_records)
            for slot, (values, offsets) in zip(self._columns, taken, strict=True)
            if slot.name not in self._left_out
        }
        if self._label is None:
            return tuple(named.values()) if self._as_tuple else named
        label = named.pop(self._label)
        return (tuple(named.values()) if self._as_tuple else named), label

    def _column(
        self, slot: Slot, values: NDArray[Any], offsets: NDArray[np.int64] | None, num_records: int
    ) -> Any:
        if slot.shape is None:
            assert offsets is not None
            return values, offsets if self._include_last_offset else offsets[:-1]
        return values.reshape(num_records, *slot.shape)
