"""Text formats, parsed by native code: MultiSlot, Criteo's and CSV; and binary MultiSlot.

In shapes, B is the number of records and N the number of values.
"""

from __future__ import annotations

import contextlib
import csv
import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NoReturn

from sparsefleet import _core
from sparsefleet.data.byte_source import check_zstd, compression_of, open_file, read_blocks
from sparsefleet.data.column_advice import missing_column_advice, value_advice
from sparsefleet.data.field import ColumnName, Field, Slot, as_fields
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import (
    BadLine,
    ColumnPart,
    FilePart,
    RecordFormat,
    SourceContext,
)
from sparsefleet.errors import (
    BadLineError,
    ConfigError,
    CorruptFileError,
    InputFileError,
    PipeCommandError,
    SchemaError,
)
from sparsefleet.field_checks import require, require_bool


def file_blocks(path: str, context: SourceContext) -> Generator[bytes, None, None]:
    """Yield the decompressed file in blocks, as read from disk or from a download command."""
    config = context.config
    command = None if config.download is None else config.download(path)
    if command is not None:
        download = PipeCommand(command, path, config.pipe_timeout_s, context.stopped)
        yield from download.blocks(iter(()), config.block_bytes)
        return
    with open_file(path, config.storage_options) as file:
        compression = compression_of(path, config.compression)
        yield from read_blocks(file, path, compression, config.block_bytes, config.max_window_bytes)


class TextFormat(RecordFormat):
    """A format with one record per line."""

    __slots__ = ()

    needs_first_line: bool = False
    """Whether `native_for` needs the first line of each file."""

    header_lines: int = 0
    """Lines at the start of each file that are not records."""

    @abstractmethod
    def make_native(self) -> _core.RecordFormat:
        """Return the format for the native parser."""

    def native_for(self, first_line: bytes, path: str) -> _core.RecordFormat:  # noqa: ARG002
        """Return the format for a file with this first line. Raises SchemaError if it is wrong."""
        return self.make_native()

    def advice(self, what: str) -> str:
        """Return what to do about a bad line, as the end of an error's sentence, or ""."""
        del what
        return ""

    def open_source(self, context: SourceContext) -> TextSource:
        return TextSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        if any(compression_of(path, config.compression) == "zstd" for path in files):
            check_zstd()


class TextSource:
    """Parses lines into columns. Not thread-safe."""

    def __init__(self, format: TextFormat, context: SourceContext) -> None:  # noqa: A002
        native = format.make_native()
        self._format = format
        self._parser = _core.RecordParser(native, context.config.max_line_bytes)
        self._batch = _core.ColumnBatch(native)
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield parsed lines; the last piece also contains the file's number of lines."""
        config = self._context.config
        pipe = None
        if config.command is not None:
            pipe = PipeCommand(
                config.command, part.path, config.pipe_timeout_s, self._context.stopped
            )
        failure = None
        try:
            with contextlib.closing(self._blocks(part.path, pipe)) as blocks:
                try:
                    yield from self._parse(part, blocks, room)
                except (BadLineError, SchemaError):
                    failure = None if pipe is None else pipe.await_failure(blocks)
                    raise
        except (BadLineError, SchemaError) as error:
            if pipe is None:
                raise
            if failure is not None:
                raise PipeCommandError(f"{failure}; its output: {error}") from error
            raise type(error)(f"{error}; {pipe.account()}") from error

    def _blocks(self, path: str, pipe: PipeCommand | None) -> Generator[bytes, None, None]:
        block_bytes = self._context.config.block_bytes
        with contextlib.closing(file_blocks(path, self._context)) as source:
            yield from source if pipe is None else pipe.blocks(source, block_bytes)

    def _parse(
        self, part: FilePart, blocks: Iterator[bytes], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        limit = self._context.config.max_line_bytes
        if self._format.needs_first_line:
            line, blocks = _peek_line(blocks, limit)
            if line is not None:
                self._parser = _core.RecordParser(self._format.native_for(line, part.path), limit)
        begin = max(part.begin, self._format.header_lines)
        self._parser.begin_file(begin, *self._context.share)
        for block in blocks:
            self._parser.feed(block)
            yield from self._drain(part.path, begin, len(block), room)
            if self._context.stopped():
                return
        self._parser.finish()
        yield from self._drain(part.path, begin, 0, room)
        if self._parser.line < part.begin:
            self._complain_of_shorter(part)
        num_records = len(self._batch)
        lines = self._parser.line
        yield ColumnPart(self._batch.take(), num_records, lines, total=lines)

    def _drain(
        self, path: str, begin: int, num_bytes: int, room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        """Parse the rest of the block that was last fed to the parser."""
        parser, context = self._parser, self._context
        before = max(parser.line, begin)
        while outcome := parser.parse(self._batch, room()):
            num_records = len(self._batch)
            if outcome == _core.BAD_LINE:
                bad = BadLine(path, *parser.bad_line)
                bad = bad._replace(advice=self._format.advice(bad.what))
                if num_records > 0:
                    yield ColumnPart(self._batch.take(), num_records, parser.line - 1)
                context.counts.add(bad_lines=1)
                context.bad_lines.take(bad)
            elif outcome == _core.BATCH_FULL:
                yield ColumnPart(self._batch.take(), num_records, parser.line)
        context.counts.add(lines=max(parser.line, begin) - before, bytes=num_bytes)

    def _complain_of_shorter(self, part: FilePart) -> NoReturn:
        raise InputFileError(
            f"{part.path}: the file has {self._parser.line} lines, but {part.begin} had been read "
            "when the state was saved: the file has changed since"
        )


def _peek_line(
    blocks: Iterator[bytes], max_line_bytes: int
) -> tuple[bytes | None, Iterator[bytes]]:
    """Return the first line, or None for an empty file, and an iterator over all blocks."""
    seen: list[bytes] = []
    num_bytes = 0
    for block in blocks:
        seen.append(block)
        num_bytes += len(block)
        if b"\n" in block or num_bytes > max_line_bytes:
            break
    if not seen:
        return None, blocks
    line = b"".join(seen).partition(b"\n")[0]
    return line.removesuffix(b"\r"), chain(seen, blocks)


_SKIPPED_AT_ONCE = 4096


class MultiSlot(TextFormat):
    """MultiSlot text.

    Each line contains all slots in order, each as a count and that many values.

    A line for the slots in the example below: ``2 0.5 0.25 3 17 18 99 1 1``.

    >>> format = MultiSlot(Slot("dense", "float", (2,)), Slot("ads"), Slot("click", "float", ()))
    >>> [slot.name for slot in format.columns]
    ['dense', 'ads', 'click']
    """

    def __init__(self, *slots: Slot) -> None:
        for slot in slots:
            if not isinstance(slot, Slot):
                raise ConfigError(f"MultiSlot takes Slot objects, got a {type(slot).__name__}")
            if isinstance(slot, Field):
                raise ConfigError(
                    f"MultiSlot text has no columns: use a Slot for '{slot.name}', not a Field"
                )
        self._columns: tuple[Slot, ...] = slots
        self._native = _core.multi_slot_format(
            [(slot.name, slot.dtype, slot.width) for slot in slots]
        )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self._columns

    def make_native(self) -> _core.RecordFormat:
        return self._native


@dataclass(frozen=True, kw_only=True, slots=True)
class CriteoTsv(TextFormat):
    """Criteo's click logs: label, 13 counts and 26 categories, tab-separated; empty means missing.

    Columns: "label" float32[B], "counts" float32[B, 13], "categories" int64[B, 26].

    >>> [slot.name for slot in CriteoTsv(has_label=False).columns]
    ['counts', 'categories']
    """

    categories: Literal["hash", "hex"] = "hash"
    """"hash": any string t in category c, counted from 0, becomes ``hash64(t, seed=c)``, and a
    missing value is hashed as the empty string. "hex": the string is a number of up to 8
    hexadecimal digits, and a missing value becomes -1; equal strings in two categories then share
    an id.
    """

    counts: Literal["log", "plain"] = "log"
    """"log": a count x becomes log(1 + x), or 0 if negative. "plain": unchanged."""

    missing_count: float = 0.0
    """The value that replaces a missing count; it is not transformed, and may be NaN."""

    has_label: bool = True
    """If False, lines start with the first count."""

    def __post_init__(self) -> None:
        require(self.categories in ("hash", "hex"), self, "categories", "'hash' or 'hex'")
        require(self.counts in ("log", "plain"), self, "counts", "'log' or 'plain'")
        value = self.missing_count
        holds = isinstance(value, (int, float)) and not math.isinf(value)
        require(holds, self, "missing_count", "a number")
        require_bool(self, "has_label")

    @property
    def columns(self) -> tuple[Slot, ...]:
        label = (Slot("label", "float", ()),) if self.has_label else ()
        return (*label, Slot("counts", "float", (13,)), Slot("categories", "uint64", (26,)))

    @property
    def description(self) -> RecordFormat:
        return self  # its columns do not tell whether categories are hashed

    def make_native(self) -> _core.RecordFormat:
        return _core.criteo_format(
            self.categories == "hash", self.counts == "log", self.missing_count, self.has_label
        )


class MultiSlotBinary(RecordFormat):
    """Binary records without separators, with a uint16 count and values for each slot.

    Little-endian; values are uint64 or float32. Fluid's FileInstantDataset reads the same files.

    >>> import pathlib, struct, tempfile
    >>> from sparsefleet.data import MultiSlotBinary, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0"
    >>> size = path.write_bytes(struct.pack("<HQQHf", 2, 17, 18, 1, 1.0))
    >>> format = MultiSlotBinary(Slot("ads"), Slot("click", "float", ()))
    >>> [batch["ads"][0].tolist() for batch in Reader(path, format, 8)]
    [[17, 18]]
    """

    def __init__(self, *slots: Slot) -> None:
        if any(slot.dtype == "text" for slot in slots):
            raise ConfigError("MultiSlotBinary does not support slots with dtype 'text'")
        self._text = MultiSlot(*slots)

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self._text.columns

    def open_source(self, context: SourceContext) -> BinarySource:
        return BinarySource(self._text.make_native(), context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        if config.command is not None:
            raise ConfigError(
                "MultiSlotBinary cannot use a pipe or shell command, which supports only text"
            )
        if any(compression_of(path, config.compression) == "zstd" for path in files):
            check_zstd()


class BinarySource:
    """Converts bytes into columns. Not thread-safe.

    A malformed record is always an error, regardless of `max_bad_lines`, since it is unknown where
    the next record starts.
    """

    def __init__(self, native: _core.RecordFormat, context: SourceContext) -> None:
        self._batch = _core.ColumnBatch(native)
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield the records from `part.begin` on; the last piece also contains the total count."""
        self._batch.take()  # drops the leftovers of an abandoned pass
        number, rest = 0, b""
        with contextlib.closing(file_blocks(part.path, self._context)) as blocks:
            for block in blocks:
                data, used = rest + block, 0
                self._context.counts.add(bytes=len(block))
                while True:
                    skipped = min(max(part.begin - number, 0), _SKIPPED_AT_ONCE)
                    wanted = skipped or room()
                    used += self._fill(part.path, data, used, number, wanted)
                    if len(self._batch) < wanted:
                        break
                    number += wanted
                    columns = self._batch.take()
                    if not skipped:
                        self._context.counts.add(lines=wanted)
                        yield ColumnPart(columns, wanted, number)
                rest = data[used:]
                if self._context.stopped():
                    return
        yield self._end(part, number, rest)

    def _fill(self, path: str, data: bytes, begin: int, number: int, wanted: int) -> int:
        try:
            return _core.read_binary_records(data, begin, self._batch, wanted)
        except CorruptFileError as error:
            place = number + len(self._batch) + 1
            raise InputFileError(f"{path}, record {place}: {error}") from error

    def _end(self, part: FilePart, number: int, rest: bytes) -> ColumnPart:
        count = len(self._batch)
        total = number + count
        if rest:
            raise InputFileError(
                f"{part.path}: the file is truncated: it ends after {len(rest)} bytes of record "
                f"{total + 1}"
            )
        if number < part.begin:
            raise InputFileError(
                f"{part.path}: the file has {total} records, but {part.begin} had been read when "
                "the state was saved: the file has changed since"
            )
        self._context.counts.add(lines=count)
        return ColumnPart(self._batch.take(), count, total, total=total)


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

    def advice(self, what: str) -> str:
        return value_advice(what, self._fields)

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
                number = _find(column, names, path, field, self._separator)
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


def _find(
    column: ColumnName, names: Sequence[str | None], path: str, field: Field, separator: str
) -> int:
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
            f"{'' if found else missing_column_advice(column, names, separator)}"
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
