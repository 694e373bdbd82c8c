"""The MultiSlot formats, text and binary, and Criteo's format.

In shapes, B is the number of records.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from sparsefleet import _core
from sparsefleet.data.byte_source import check_zstd, compression_of
from sparsefleet.data.field import Field, Slot
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import ColumnPart, FilePart, RecordFormat, SourceContext
from sparsefleet.data.text_format import TextFormat, file_blocks
from sparsefleet.errors import ConfigError, CorruptFileError, InputFileError
from sparsefleet.field_checks import require, require_bool

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
