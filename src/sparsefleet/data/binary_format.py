"""MultiSlot records in binary files. Letters: B records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from sparsefleet import _core
from sparsefleet.data.byte_source import check_zstd, compression_of
from sparsefleet.data.file_blocks import file_blocks
from sparsefleet.data.formats import MultiSlot
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.record_source import ColumnPart, FilePart, SourceContext
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError, CorruptFileError, InputFileError

_SKIPPED_AT_ONCE = 4096


class MultiSlotBinary(RecordFormat):
    """Records one after the other, of each slot a uint16 count and its values, little-endian.

    Values are uint64 or float32. What Fluid's FileInstantDataset reads.

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
            raise ConfigError("MultiSlotBinary has no slots with dtype 'text'")
        self._text = MultiSlot(*slots)

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self._text.columns

    def open_source(self, context: SourceContext) -> BinarySource:
        return BinarySource(self._text.make_native(), context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        if config.command is not None:
            raise ConfigError("binary files are read as they are: give no pipe or shell command")
        if any(compression_of(path, config.compression) == "zstd" for path in files):
            check_zstd()


class BinarySource:
    """Bytes into columns. Not thread-safe.

    A record that cannot be is an error whatever `max_bad_lines` says: where the next one begins
    cannot be known.
    """

    def __init__(self, native: _core.RecordFormat, context: SourceContext) -> None:
        self._batch = _core.ColumnBatch(native)
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """The records from `part.begin` on; a file's number of records is known at its end."""
        self._batch.take()  # what a pass that was left has left
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
                f"{part.path}: ends in the midst of record {total + 1}: {len(rest)} bytes are left"
            )
        if number < part.begin:
            raise InputFileError(
                f"{part.path}: has {total} records, but {part.begin} had been read when the state "
                "was saved: it is another file now"
            )
        self._context.counts.add(lines=count)
        return ColumnPart(self._batch.take(), count, total, total=total)
