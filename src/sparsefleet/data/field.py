"""A slot and where in a file with columns its values are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError

ColumnName = str | int


@dataclass(frozen=True, kw_only=True, slots=True)
class Field(Slot):
    """A slot of a file with columns; a plain `Slot` is one whose settings are all the default.

    >>> Field("counts", "float", (2,), columns=("I1", "I2"), missing=0.0).source
    ('I1', 'I2')
    >>> Field("ads").source
    ('ads',)
    """

    columns: ColumnName | tuple[ColumnName, ...] | None = None
    """The column of the file, by name or, in CSV, also by number from 0. Several are side by side
    in one slot, which has as many values as columns. None: the one called as the slot."""

    missing: int | float | None = None
    """What stands for a missing value: null, NaN in a column of floats, a missing text in CSV.
    None: a missing value is an error."""

    hash_seed: int | None = None
    """Texts become ids by `hash64(text, hash_seed + i)` in the i-th column of the slot, from 0.
    None: as the type of the column says, texts then with seed 0; in CSV ids are numbers."""

    separator: str = ""
    """Of CSV: what is between several values in one field. "": a field is one value."""

    def __post_init__(self) -> None:
        Slot.__post_init__(self)
        self._check_columns()
        self._check_missing()
        seed = self.hash_seed
        if seed is not None:
            self._require(self.dtype == "uint64", "hash_seed needs dtype 'uint64'", self.dtype)
            holds = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**64
            self._require(holds, "hash_seed must be an int in 0..2^64 - 1 or None", seed)
        holds = isinstance(self.separator, str) and len(self.separator.encode()) <= 1
        self._require(holds, "separator must be one ASCII character or ''", self.separator)

    @property
    def source(self) -> tuple[ColumnName, ...]:
        """The columns of the file, in order."""
        if self.columns is None:
            return (self.name,)
        return self.columns if isinstance(self.columns, tuple) else (self.columns,)

    @property
    def missing_id(self) -> int | None:
        """`missing` as int64 by bit pattern, if values are ids."""
        if self.missing is None or self.dtype == "float":
            return None
        return int(self.missing) - (2**64 if self.missing >= 2**63 else 0)

    @property
    def missing_float(self) -> float | None:
        """`missing`, if values are floats."""
        return None if self.missing is None or self.dtype != "float" else float(self.missing)

    def _check_columns(self) -> None:
        holds = len(self.source) > 0 and all(
            isinstance(column, (str, int)) and not isinstance(column, bool)
            for column in self.source
        )
        self._require(holds, "columns must be a name, a number or a tuple of them", self.columns)
        num = len(self.source)
        self._require(len(set(self.source)) == num, "a column is there twice", self.columns)
        if num > 1:
            holds = self.shape is not None and self.width == num and self.separator == ""
            wanted = "several columns need a shape with as many values, and no separator"
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
            self._require(holds, "missing must be an id of 64 bits or None", value)

    def _require(self, holds: bool, wanted: str, found: object) -> None:
        if not holds:
            raise ConfigError(f"field '{self.name}': {wanted}, got {found!r}")


def as_fields(format: str, slots: tuple[Slot, ...]) -> tuple[Field, ...]:  # noqa: A002
    """The slots of a format as fields; at least one, and no two of the same name."""
    if not slots:
        raise ConfigError(f"{format} needs at least one slot, got none")
    fields: list[Field] = []
    names: set[str] = set()
    for slot in slots:
        if not isinstance(slot, Slot):
            raise ConfigError(f"{format} takes slots, got a {type(slot).__name__}")
        if slot.name in names:
            raise ConfigError(f"{format}: two slots are called '{slot.name}'")
        names.add(slot.name)
        if not isinstance(slot, Field):
            slot = Field(slot.name, slot.dtype, slot.shape)
        fields.append(slot)
    return tuple(fields)
