"""Records that a Python function gives, for anything that no other format reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from sparsefleet.data.bad_lines import BadLine
from sparsefleet.data.field import as_fields
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.record_packing import MismatchError, RecordPacker
from sparsefleet.data.record_source import (
    ColumnPart,
    FilePart,
    SourceContext,
    TakenColumn,
    slice_column,
)
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError, DataError, InputFileError

_MAX_KEPT_CHARACTERS = 64 * 1024  # of a bad record


class Records(RecordFormat):
    """What a function yields: dicts by slot, or tuples in the order of the slots.

    function: called on the reading thread with the path of each file, or, in a reader whose files
        are None, once without arguments; gives an iterator. To go on after a stop, it is run again
        and its first records are left out, so it should give the same ones each time.
    slots: a value is a number (or text, hashed, in a slot of ids), or a list, tuple or array of
        them; of a slot with a shape, as many as the shape has. `Field` says what stands for None.
    batches: the function yields whole batches instead: a dict or tuple with an array [B, *shape]
        for a slot with a shape, (values [N], offsets [B + 1]) for one without.

    With files None and several workers, each runs the function and keeps every n-th thing yielded.

    >>> from sparsefleet.data import Reader, Records, Slot
    >>> def squares():
    ...     for number in range(5):
    ...         yield {"id": number, "square": [number**2]}
    >>> format = Records(squares, Slot("id", "uint64", ()), Slot("square"))
    >>> [batch["square"][0].tolist() for batch in Reader(None, format, batch_size=2)]
    [[0, 1], [4, 9], [16]]
    """

    def __init__(
        self, function: Callable[..., Iterable[Any]], *slots: Slot, batches: bool = False
    ) -> None:
        if not callable(function):
            raise ConfigError(
                f"Records takes a function that gives an iterator, got a {type(function).__name__}"
            )
        self.function = function
        self.fields = as_fields("Records", slots)
        self.gives_batches = batches
        self.unnamed_input = f"<{getattr(function, '__name__', type(function).__name__)}>"
        for field in self.fields:
            if field.columns is not None or field.separator:
                raise ConfigError(
                    f"Records: field '{field.name}' says columns or a separator: a record has a "
                    "value for each slot by its name"
                )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self.fields

    def open_source(self, context: SourceContext) -> RecordsSource:
        return RecordsSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:  # noqa: ARG002
        if config.command is not None or config.compression not in ("infer", "none"):
            raise ConfigError(
                "Records: the function opens the files; ReaderConfig's pipe_command, shell_command "
                "and compression are for text"
            )


class RecordsSource:
    """Runs the function and packs what it yields. Not thread-safe."""

    def __init__(self, format: Records, context: SourceContext) -> None:  # noqa: A002
        self._format = format
        self._context = context
        self._packer = RecordPacker(format.fields)
        self._pack = self._pack_batches if format.gives_batches else self._pack_records

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Packed records; how many there are is known at the end."""
        with contextlib.closing(self._items(part.path)) as items:
            total = yield from self._pack(part, items, room)
        if self._context.stopped():
            return
        if total < part.begin:
            raise InputFileError(
                f"{part.path}: gave {total} records, but {part.begin} had been read when the state "
                "was saved: it must give the same ones again"
            )
        yield ColumnPart([], 0, total, total)

    def _items(self, path: str) -> Generator[Any, None, None]:
        """What the function yields; its errors get the file and the number of the item."""
        function = self._format.function
        arguments = () if path == self._format.unnamed_input else (path,)
        number = 0
        items: Iterator[Any] = iter(())
        try:
            items = iter(function(*arguments))
            while not self._context.stopped():
                try:
                    item = next(items)
                except StopIteration:
                    return
                number += 1
                yield item
        except Exception as error:  # the edge to code that is not ours
            noun = "batch" if self._format.gives_batches else "record"
            raise DataError(
                f"{path}, {noun} {number + 1}: the function of Records failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _pack_records(
        self, part: FilePart, items: Iterator[Any], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, int]:
        context = self._context
        chunk: list[tuple[int, Any]] = []
        total = 0
        for total, record in enumerate(items, 1):
            mine = (total - 1) % context.worker_num == context.worker_index
            if mine and total > part.begin:
                chunk.append((total, record))
            if len(chunk) == room():
                yield from self._pack_chunk(part.path, chunk)
                chunk = []
        yield from self._pack_chunk(part.path, chunk)
        return total

    def _pack_chunk(
        self, path: str, chunk: list[tuple[int, Any]]
    ) -> Generator[ColumnPart, None, None]:
        """Numbered records, from 1, all at once; where one of them is bad, one by one."""
        if not chunk:
            return
        try:
            columns = self._packer.pack_records([record for _, record in chunk])
        except MismatchError as error:
            if len(chunk) == 1:
                number, record = chunk[0]
                self._context.counts.add(lines=1)
                self._refuse(path, number, error, record)
                return
            for one in chunk:
                yield from self._pack_chunk(path, [one])
            return
        self._count(columns, len(chunk))
        yield ColumnPart(columns, len(chunk), chunk[-1][0])

    def _pack_batches(
        self, part: FilePart, items: Iterator[Any], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, int]:
        context = self._context
        total = 0
        for number, batch in enumerate(items):
            try:
                columns, size = self._packer.pack_batch(batch)
            except MismatchError as error:  # how many records it has, nobody knows
                raise DataError(f"{part.path}, batch {number + 1}: {error}") from error
            begin = min(max(part.begin - total, 0), size)
            if number % context.worker_num == context.worker_index:
                self._count(columns, size - begin)
                while begin < size:
                    end = min(size, begin + room())
                    cut = [slice_column(column, begin, end) for column in columns]
                    yield ColumnPart(cut, end - begin, total + end)
                    begin = end
            total += size
        return total

    def _count(self, columns: list[TakenColumn], num_records: int) -> None:
        num_bytes = sum(values.nbytes for values, _ in columns)
        self._context.counts.add(lines=num_records, bytes=num_bytes)

    def _refuse(self, path: str, number: int, error: MismatchError, record: Any) -> None:
        self._context.counts.add(bad_lines=1)
        text = repr(record).replace("\n", " ")[:_MAX_KEPT_CHARACTERS].encode("utf-8", "replace")
        self._context.bad_lines.take(
            BadLine(path, number, error.column, error.what, text, "record")
        )
