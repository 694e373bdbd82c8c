"""What a field of a record holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require

_MAX_WIDTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """One field: ids or floats, of any number in each record or of a fixed shape.

    Letters: B records, N values of them all.

    >>> Slot("ads")                         # values int64[N], offsets
    Slot(name='ads', dtype='uint64', shape=None)
    >>> Slot("counts", "float", (13,)).width    # float32[B, 13]
    13
    >>> Slot("click", "float", ()).width        # float32[B]
    1
    """

    name: str
    """What the column is called in a batch."""

    dtype: Literal["uint64", "float", "text"] = "uint64"
    """"uint64": ids, int64 by bit pattern as torch has no full uint64. "float": float32. "text":
    one text without blanks in each record, as bytes uint8[N] and offsets; for `MultiSlot`."""

    shape: tuple[int, ...] | None = None
    """None: any number of values, as many as the record says. Else the shape of each record's
    values; (): one value, and the column has no dimension but B."""

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", self, "name", "a text")
        if self.dtype not in ("uint64", "float", "text"):
            raise ConfigError(
                f"slot '{self.name}': dtype must be 'uint64', 'float' or 'text', got {self.dtype!r}"
            )
        if self.shape is None:
            return
        if self.dtype == "text":
            raise ConfigError(f"slot '{self.name}': a text has no shape, got {self.shape!r}")
        if not isinstance(self.shape, tuple) or not all(
            isinstance(size, int) and not isinstance(size, bool) and size >= 1
            for size in self.shape
        ):
            raise ConfigError(
                f"slot '{self.name}': shape must be None or a tuple of ints >= 1, without the "
                f"batch; got {self.shape!r}"
            )
        if self.width > _MAX_WIDTH:
            raise ConfigError(f"slot '{self.name}': shape {self.shape} has too many values")

    @property
    def width(self) -> int:
        """Values of each record; 0 if it is for the record to say."""
        return 0 if self.shape is None else math.prod(self.shape)
