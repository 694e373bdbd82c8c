"""Separated text with a schema. Letters: B records, N values."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from sparsefleet import _core
from sparsefleet.data.field import ColumnName, Field, as_fields
from sparsefleet.data.slot import Slot
from sparsefleet.data.text_format import TextFormat
from sparsefleet.errors import ConfigError, SchemaError

_ENDS = ("\r", "\n", "\0")


class Csv(TextFormat):
    """Text with a separator between fields, each of which goes to a slot or is left out.

    slots: `Slot`, or `Field` where the column is called otherwise, values may be missing, texts
        are hashed, or a field has several values. A slot without a shape has as many values as its
        field, also none.
    header: True: the first line of each file has the names of its columns, which may come in any
        order. Names: the columns of files without such a line. False: columns are numbers.
    separator, quote: one character each; quote "": quotes are characters like others. A quoted
        field may hold separators and doubled quotes, but no line end: a line is a record. Spaces
        around a field do not count, in its quotes they do.
    missing_texts: what stands for a missing value.

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
            raise ConfigError(f"Csv.missing_texts must be a list of texts, got {missing_texts!r}")
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
        """For files with the columns of the slots and no others, in their order."""
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
        """names: of the columns of the file, None where they have none."""
        fields: list[tuple[str, int | None, int]] = [
            ("" if name is None else f"'{name}'", None, 0) for name in names
        ]
        for index, field in enumerate(self._fields):
            for place, column in enumerate(field.source):
                number = _find(column, names, path, field)
                name, user, _ = fields[number]
                if user is not None:
                    raise SchemaError(
                        f"{path}: column {column!r} is wanted by two slots, "
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
                f"{path}, line 1: expected the names of columns with {self._separator!r} between, "
                f"found {line[:80]!r}: {error}"
            ) from error

    def _check_field(self, field: Field, has_names: bool) -> None:
        if not has_names and any(isinstance(column, str) for column in field.source):
            raise ConfigError(
                f"Csv(header=False): field '{field.name}' needs the number of its column, got "
                f"{field.source[0]!r}; or give the names of all columns as header"
            )
        if field.width > 1 and len(field.source) == 1 and field.separator == "":
            raise ConfigError(
                f"Csv: field '{field.name}' with shape {field.shape} needs a separator of its "
                f"values, or {field.width} columns"
            )


def _find(column: ColumnName, names: Sequence[str | None], path: str, field: Field) -> int:
    """The number of the column."""
    if isinstance(column, int):
        if 0 <= column < len(names):
            return column
        raise SchemaError(
            f"{path}: has {len(names)} columns, but slot '{field.name}' wants number {column} "
            "(from 0)"
        )
    found = [number for number, name in enumerate(names) if name == column]
    if not found:
        bare = [None if name is None else name.strip(" ") for name in names]
        found = [number for number, name in enumerate(bare) if name == column]
    if len(found) != 1:
        times = "no column" if not found else f"{len(found)} columns"
        raise SchemaError(
            f"{path}: {times} called {column!r}, which slot '{field.name}' wants; the file has "
            f"{[name for name in names if name is not None]!r:.300}"
        )
    return found[0]


def _one_byte(name: str, value: object, *, may_be_empty: bool) -> str:
    sizes = (0, 1) if may_be_empty else (1,)
    if isinstance(value, str) and len(value) in sizes and value.isascii() and value not in _ENDS:
        return value
    raise ConfigError(f"Csv.{name} must be one ASCII character, no line end, got {value!r}")


def _checked_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"Csv.header must be True, False or names of columns, got {names!r}")
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"Csv.header must have names, each once, got {list(names)!r}")
    return list(names)
