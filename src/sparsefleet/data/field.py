"""Slots, and the location of their values in a file with columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require

_MAX_WIDTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """One input of a model: ids or floats, with any number of values per record or a fixed shape.

    In shapes, B is the number of records and N the number of values in all records.

    >>> Slot("ads")                         # values int64[N], offsets
    Slot(name='ads', dtype='uint64', shape=None)
    >>> Slot("counts", "float", (13,)).width    # float32[B, 13]
    13
    >>> Slot("click", "float", ()).width        # float32[B]
    1
    """

    name: str
    """The name of the column in a batch."""

    dtype: Literal["uint64", "float", "text"] = "uint64"
    """"uint64": ids, held as int64 with the same bits, since torch has no full uint64. "float":
    float32. "text": one string without blanks per record, as bytes uint8[N] and offsets; only for
    `MultiSlot`.
    """

    shape: tuple[int, ...] | None = None
    """The shape of each record's values; () is a single value, which makes the column [B]. If None,
    the number of values varies between records.
    """

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", self, "name", "a non-empty string")
        if self.dtype not in ("uint64", "float", "text"):
            raise ConfigError(
                f"slot '{self.name}': dtype must be 'uint64', 'float' or 'text', got {self.dtype!r}"
            )
        if self.shape is None:
            return
        if self.dtype == "text":
            raise ConfigError(
                f"slot '{self.name}': dtype 'text' takes no shape, got {self.shape!r}"
            )
        if not isinstance(self.shape, tuple) or not all(
            isinstance(size, int) and not isinstance(size, bool) and size >= 1
            for size in self.shape
        ):
            raise ConfigError(
                f"slot '{self.name}': shape must be None or a tuple of ints >= 1, without the "
                f"batch dimension; got {self.shape!r}"
            )
        if self.width > _MAX_WIDTH:
            raise ConfigError(
                f"slot '{self.name}': shape {self.shape} has more than {_MAX_WIDTH:,} values"
            )

    @property
    def width(self) -> int:
        """Number of values per record; 0 if it varies."""
        return 0 if self.shape is None else math.prod(self.shape)


ColumnName = str | int


@dataclass(frozen=True, kw_only=True, slots=True)
class Field(Slot):
    """A slot read from a file with columns. A `Slot` works like a `Field` with default settings.

    >>> Field("counts", "float", (2,), columns=("I1", "I2"), missing=0.0).source
    ('I1', 'I2')
    >>> Field("ads").source
    ('ads',)
    """

    columns: ColumnName | tuple[ColumnName, ...] | None = None
    """The name of the column in the file or, in CSV, its number, counted from 0. A tuple of columns
    fills one slot with one value from each. None means the column with the slot's name."""

    missing: int | float | None = None
    """The value that replaces a missing value. A value is missing if it is null, NaN in a float
    column, or one of `missing_texts` in CSV. If None, a missing value is an error.
    """

    hash_seed: int | None = None
    """Hash strings to ids with `hash64(text, hash_seed + i)`, where i is the index of the column
    within the slot. If None, the column's type decides: strings are hashed with seed 0, and ids in
    CSV must be numbers.
    """

    separator: str = ""
    """For CSV, the separator between the values in one field, or "" if each field is one value."""

    vocabulary: tuple[str, ...] | None = None
    """All known strings. String i, counted from 0, has the id i + 1; any other string and a missing
    value have the id 0. Requires `hash_seed`. If the field is the label of a reader, its ids are
    converted to float32. None accepts any string.
    """

    max_values: int | None = None
    """For a slot without a shape, keep only the last values of each record, up to this number. None
    keeps all values.
    """

    def __post_init__(self) -> None:
        Slot.__post_init__(self)
        self._check_columns()
        self._check_missing()
        seed = self.hash_seed
        if seed is not None:
            self._require(self.dtype == "uint64", "hash_seed requires dtype 'uint64'", self.dtype)
            holds = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**64
            self._require(holds, "hash_seed must be an int in 0..2^64 - 1 or None", seed)
        holds = isinstance(self.separator, str) and len(self.separator.encode()) <= 1
        self._require(holds, "separator must be one ASCII character or ''", self.separator)
        self._check_vocabulary()
        most = self.max_values
        if most is not None:
            holds = isinstance(most, int) and not isinstance(most, bool) and most >= 1
            self._require(holds, "max_values must be an int >= 1 or None", most)
            self._require(self.shape is None, "max_values requires a slot without a shape", most)

    @property
    def source(self) -> tuple[ColumnName, ...]:
        """The columns of the file that fill the slot, in order."""
        if self.columns is None:
            return (self.name,)
        return self.columns if isinstance(self.columns, tuple) else (self.columns,)

    @property
    def missing_id(self) -> int | None:
        """`missing` as an int64 with the same bits, or None if the values are not ids."""
        if self.missing is None or self.dtype == "float":
            return None
        return int(self.missing) - (2**64 if self.missing >= 2**63 else 0)

    @property
    def missing_float(self) -> float | None:
        """`missing` as a float, or None if the values are not floats."""
        return None if self.missing is None or self.dtype != "float" else float(self.missing)

    def _check_columns(self) -> None:
        holds = len(self.source) > 0 and all(
            isinstance(column, (str, int)) and not isinstance(column, bool)
            for column in self.source
        )
        self._require(holds, "columns must be a name, a number or a tuple of these", self.columns)
        num = len(self.source)
        self._require(len(set(self.source)) == num, "columns must be unique", self.columns)
        if num > 1:
            holds = self.shape is not None and self.width == num and self.separator == ""
            wanted = "several columns need a shape with the same number of values and no separator"
            self._require(holds, wanted, f"{num} columns and shape {self.shape}")

    def _check_missing(self) -> None:
        value = self.missing
        if value is None:
            return
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if self.dtype == "float":
            holds = is_int or (isinstance(value, float) and not math.isinf(value))
            self._require(holds, "missing must be a number or None", value)
        else:
            holds = is_int and -(2**63) <= value < 2**64
            self._require(holds, "missing must be a 64-bit id or None", value)

    def _check_vocabulary(self) -> None:
        known = self.vocabulary
        if known is None:
            return
        holds = isinstance(known, tuple) and all(isinstance(text, str) for text in known)
        self._require(holds, "vocabulary must be a tuple of strings or None", known)
        self._require(self.hash_seed is not None, "vocabulary requires hash_seed", None)
        self._require(len(self.source) == 1, "vocabulary requires one column", self.source)
        self._require(self.missing in (None, 0), "vocabulary requires missing=0", self.missing)
        if len(set(known)) != len(known):
            twice = next(text for at, text in enumerate(known) if text in known[:at])
            raise ConfigError(
                f"field '{self.name}': vocabulary has {twice!r} twice; list each string once"
            )

    def _require(self, holds: bool, wanted: str, found: object) -> None:
        if not holds:
            raise ConfigError(f"field '{self.name}': {wanted}, got {found!r}")


def as_fields(format: str, slots: tuple[Slot, ...]) -> tuple[Field, ...]:  # noqa: A002
    """Return the slots of a format as fields, after checking that names are unique."""
    if not slots:
        raise ConfigError(f"{format} needs at least one slot, got none")
    fields: list[Field] = []
    names: set[str] = set()
    for slot in slots:
        if not isinstance(slot, Slot):
            raise ConfigError(f"{format} takes Slot objects, got a {type(slot).__name__}")
        if slot.name in names:
            raise ConfigError(f"{format}: two slots are named '{slot.name}'")
        names.add(slot.name)
        if not isinstance(slot, Field):
            slot = Field(slot.name, slot.dtype, slot.shape)
        fields.append(slot)
    return tuple(fields)
