"""CSV and other delimited text, with a schema.

In shapes, B is the number of records and N the number of values.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

from sparsefleet import _core
from sparsefleet.data.field import ColumnName, Field, Slot, as_fields
from sparsefleet.data.text_format import TextFormat
from sparsefleet.errors import ConfigError, SchemaError

_ENDS = ("\r", "\n", "\0")


class Csv(TextFormat):
    """Text with a separator between fields; columns without a slot are ignored.

    slots: a `Slot` for each column to read, or a `Field` if the column has a different name, values
        may be missing, strings are hashed, or a field has several values. A slot without a shape
        gets all values of its field, which may be empty.
    header: True means that the first line of each file names its columns, in any order. A list
        names the columns of files that have no such line. If False, slots refer to columns by
        number.
    separator, quote: one character each; quote="" turns quoting off. A quoted field may contain
        separators and doubled quotes, but no line breaks, since each line is one record. Spaces
        around a field are ignored, but spaces inside its quotes are kept.
    missing_texts: strings that are treated as missing values.

    >>> format = Csv(Slot("age", "float", ()), Field("ads", separator="|"), header=["ads", "age"])
    >>> [slot.name for slot in format.columns]
    ['age', 'ads']
    """

    needs_first_line = True

    def __init__(
        self,
        *slots: Slot,
        header: bool | Sequence[str] = True,
        separator: str = ",",
        quote: str = '"',
        missing_texts: Sequence[str] = ("",),
    ) -> None:
        self._fields = as_fields("Csv", slots)
        self._separator = _one_byte("separator", separator, may_be_empty=False)
        self._quote = _one_byte("quote", quote, may_be_empty=True)
        if isinstance(missing_texts, str) or not all(isinstance(t, str) for t in missing_texts):
            raise ConfigError(f"Csv.missing_texts must be a list of strings, got {missing_texts!r}")
        self._missing_texts = list(missing_texts)
        self._names = None if isinstance(header, bool) else _checked_names(header)
        self.header_lines = 1 if header is True else 0
        for field in self._fields:
            self._check_field(field, has_names=header is not False)
        self._plain = self._make_plain()
        if self._names is not None:
            self._native_of(self._names, "header")

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self._fields

    def make_native(self) -> _core.RecordFormat:
        """Return the parser for files whose columns are exactly those of the slots, in order."""
        return self._plain

    def _make_plain(self) -> _core.RecordFormat:
        return self._make(
            [
                (f"'{field.name}'", index, place)
                for index, field in enumerate(self._fields)
                for place in range(len(field.source))
            ]
        )

    def native_for(self, first_line: bytes, path: str) -> _core.RecordFormat:
        if self._names is not None:
            return self._native_of(self._names, path)
        row = self._split_line(first_line, path)
        return self._native_of(row if self.header_lines else [None] * len(row), path)

    def _native_of(self, names: Sequence[str | None], path: str) -> _core.RecordFormat:
        """Return the parser for a file with these column names, where None is an unnamed column."""
        fields: list[tuple[str, int | None, int]] = [
            ("" if name is None else f"'{name}'", None, 0) for name in names
        ]
        for index, field in enumerate(self._fields):
            for place, column in enumerate(field.source):
                number = _find(column, names, path, field)
                name, user, _ = fields[number]
                if user is not None:
                    raise SchemaError(
                        f"{path}: column {column!r} is used by two slots, "
                        f"'{self._fields[user].name}' and '{field.name}'"
                    )
                fields[number] = (name or f"'{field.name}'", index, place)
        return self._make(fields)

    def _make(self, fields: Sequence[tuple[str, int | None, int]]) -> _core.RecordFormat:
        slots = [
            (
                field.name,
                field.dtype == "float",
                field.width,
                field.hash_seed,
                field.separator,
                field.missing_id,
                field.missing_float,
            )
            for field in self._fields
        ]
        return _core.csv_format(
            self._separator, self._quote, self._missing_texts, slots, list(fields)
        )

    def _split_line(self, line: bytes, path: str) -> list[str]:
        try:
            text = line.decode("utf-8-sig")
            rows = csv.reader(
                [text],
                delimiter=self._separator,
                quotechar=self._quote or None,
                quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
                skipinitialspace=self._separator != " ",
                strict=True,
            )
            return next(iter(rows), [""])
        except (UnicodeDecodeError, csv.Error) as error:
            raise SchemaError(
                f"{path}, line 1: expected column names separated by {self._separator!r}, "
                f"found {line[:80]!r}: {error}"
            ) from error

    def _check_field(self, field: Field, has_names: bool) -> None:
        if not has_names and any(isinstance(column, str) for column in field.source):
            raise ConfigError(
                f"Csv(header=False): field '{field.name}' needs a column number, got "
                f"{field.source[0]!r}; use a number, or list all column names in header"
            )
        if field.width > 1 and len(field.source) == 1 and field.separator == "":
            raise ConfigError(
                f"Csv: field '{field.name}' with shape {field.shape} needs a separator between its "
                f"values, or {field.width} columns"
            )


def _find(column: ColumnName, names: Sequence[str | None], path: str, field: Field) -> int:
    """Return the column's number in the file, counted from 0."""
    if isinstance(column, int):
        if 0 <= column < len(names):
            return column
        raise SchemaError(
            f"{path}: the file has {len(names)} columns, but slot '{field.name}' needs column "
            f"{column} (counted from 0)"
        )
    found = [number for number, name in enumerate(names) if name == column]
    if not found:
        bare = [None if name is None else name.strip(" ") for name in names]
        found = [number for number, name in enumerate(bare) if name == column]
    if len(found) != 1:
        times = "no column" if not found else f"{len(found)} columns"
        raise SchemaError(
            f"{path}: {times} called {column!r}, which slot '{field.name}' needs; the file has "
            f"{[name for name in names if name is not None]!r:.300}"
        )
    return found[0]


def _one_byte(name: str, value: object, *, may_be_empty: bool) -> str:
    sizes = (0, 1) if may_be_empty else (1,)
    if isinstance(value, str) and len(value) in sizes and value.isascii() and value not in _ENDS:
        return value
    raise ConfigError(f"Csv.{name} must be one ASCII character, not a line break, got {value!r}")


def _checked_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"Csv.header must be True, False or a list of names, got {names!r}")
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"Csv.header must list unique column names, got {list(names)!r}")
    return list(names)
