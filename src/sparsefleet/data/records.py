"""Records from a Python function, for data that no other format can read.

In shapes, B is the number of records, N the number of values, and W the number of values per
record.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.column_advice import FILL_ADVICE
from sparsefleet.data.field import Field, Slot, as_fields
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import (
    BadLine,
    ColumnPart,
    FilePart,
    RecordFormat,
    SourceContext,
    TakenColumn,
    choose_records,
    slice_column,
)
from sparsefleet.errors import ConfigError, DataError, InputFileError

_MAX_KEPT_CHARACTERS = 64 * 1024  # number of characters of a bad record that are kept
_TEXTS = (str, bytes)


class Records(RecordFormat):
    """Records that a function yields: dicts keyed by slot name, or tuples in slot order.

    function: called on the reading thread with the path of each file, or once without arguments if
        the reader's files are None; returns an iterator. To resume, it is called again and its
        first records are skipped, so it should yield the same records each time.
    slots: the slots of each record. A value is a number (or, in a slot of ids, a string, which is
        hashed), or a list, tuple or array of these; a slot with a shape needs exactly the number of
        values in its shape. A `Field` can specify a replacement for None.
    batches: whether the function yields whole batches instead, each a dict or tuple with an array
        [B, *shape] for a slot with a shape, and (values [N], offsets [B + 1]) for a slot without
        one.

    Without files, each of n workers runs the function and keeps every n-th record.

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
                "Records needs a function that returns an iterator, got a "
                f"{type(function).__name__}"
            )
        self.function = function
        self.fields = as_fields("Records", slots)
        self.gives_batches = batches
        self.unnamed_input = f"<{getattr(function, '__name__', type(function).__name__)}>"
        for field in self.fields:
            if field.columns is not None or field.separator:
                raise ConfigError(
                    f"Records: field '{field.name}' has columns or a separator, which Records does "
                    "not support: records have one value per slot"
                )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self.fields

    def open_source(self, context: SourceContext) -> RecordsSource:
        return RecordsSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:  # noqa: ARG002
        if config.command is not None or config.compression not in ("infer", "none"):
            raise ConfigError(
                "Records cannot use pipe_command, shell_command or compression of ReaderConfig: "
                "its function opens the files"
            )


class RecordsSource:
    """Calls the function and packs the records it yields. Not thread-safe."""

    def __init__(self, format: Records, context: SourceContext) -> None:  # noqa: A002
        self._format = format
        self._context = context
        self._packer = RecordPacker(format.fields)
        self._pack = self._pack_batches if format.gives_batches else self._pack_records

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield packed records; the last piece also contains the total number of records."""
        with contextlib.closing(self._items(part.path)) as items:
            total = yield from self._pack(part, items, room)
        if self._context.stopped():
            return
        if total < part.begin:
            raise InputFileError(
                f"{part.path}: the function yielded {total} records, but {part.begin} had been "
                "read when the state was saved: it must yield the same records each time"
            )
        yield ColumnPart([], 0, total, total)

    def _items(self, path: str) -> Generator[Any, None, None]:
        """Yield the items of the user's function; its errors get the file and item number added."""
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
        except Exception as error:  # user code may raise anything
            noun = "batch" if self._format.gives_batches else "record"
            raise DataError(
                f"{path}, {noun} {number + 1}: the function passed to Records failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _pack_records(
        self, part: FilePart, items: Iterator[Any], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, int]:
        share = self._context.share
        chunk: list[tuple[int, Any]] = []
        total = 0
        for total, record in enumerate(items, 1):
            mine = (total - 1) % share.num == share.rank
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
        """Pack these numbered records together, or one by one if any does not match the slots."""
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
        share = self._context.share
        total = 0
        for number, batch in enumerate(items):
            try:
                columns, size = self._packer.pack_batch(batch)
            except MismatchError as error:  # the number of its records is unknown
                raise DataError(f"{part.path}, batch {number + 1}: {error}") from error
            positions = np.arange(total, total + size)
            total += size
            chosen = (positions >= part.begin) & (positions % share.num == share.rank)
            if not chosen.all():
                columns = [choose_records(column, chosen) for column in columns]
                positions = positions[chosen]
            self._count(columns, len(positions))
            begin = 0
            while begin < len(positions):
                end = min(len(positions), begin + room())
                cut = [slice_column(column, begin, end) for column in columns]
                yield ColumnPart(cut, end - begin, int(positions[end - 1]) + 1)
                begin = end
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


def hash64(text: str | bytes, seed: int = 0) -> int:
    """Return the XXH64 hash of the bytes, or of the UTF-8 bytes of a str; see docs/data.md.

    seed: in 0..2^64 - 1.

    >>> hash64("xxhash")
    3665147885093898016
    >>> hash64("xxhash", seed=20141025)
    13067679811253438005
    """
    return _core.hash64(text, seed)


def hash_ids(texts: Iterable[str | bytes], seed: int = 0) -> NDArray[np.int64]:
    """Return `hash64` of each text as int64[N] with the same bits: ids for an embedding.

    >>> hash_ids(["a", "b"]) == np.array([hash64("a"), hash64("b")], np.uint64).view(np.int64)
    array([ True,  True])
    """
    hashes = np.fromiter((_core.hash64(text, seed) for text in texts), np.uint64)
    return hashes.view(np.int64)


class MismatchError(DataError, ValueError):
    """A record does not match its slots."""

    def __init__(self, column: str, what: str) -> None:
        super().__init__(f"column {column}: {what}")
        self.column = column
        self.what = what


class RecordPacker:
    """Packs records or batches that have the given slots into columns.

    A record or batch is a mapping by slot name, or a list or tuple in slot order. The methods raise
    MismatchError for a record or batch that does not match the slots.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._names = [field.name for field in fields]
        self._name_set = set(self._names)

    def pack_records(self, records: Sequence[Any]) -> list[TakenColumn]:
        """Return the columns of B records."""
        rows = [self._values_by_slot(record) for record in records]
        columns = zip(*rows, strict=True)
        return [
            _pack_slot(field, list(values))
            for field, values in zip(self._fields, columns, strict=True)
        ]

    def pack_batch(self, batch: Any) -> tuple[list[TakenColumn], int]:
        """Return the columns of a batch, and its number of records B.

        The batch contains an array [B, *shape] for a slot with a shape, and a pair (values [N],
        offsets [B + 1]) for a slot without a shape.
        """
        columns = [
            _check_column(field, column)
            for field, column in zip(self._fields, self._values_by_slot(batch), strict=True)
        ]
        sizes = [
            len(values) if offsets is None else len(offsets) - 1 for values, offsets in columns
        ]
        for field, size in zip(self._fields, sizes, strict=True):
            if size != sizes[0]:
                raise _mismatch(field, f"{sizes[0]} records, as in '{self._names[0]}'", size)
        return columns, sizes[0]

    def _values_by_slot(self, record: Any) -> Sequence[Any]:
        names = self._names
        if isinstance(record, Mapping):
            if record.keys() != self._name_set:
                raise MismatchError(
                    f"'{min(self._name_set ^ record.keys(), key=str)}'",
                    f"expected a value for each of {names}, found {list(record)!r:.200}",
                )
            return [record[name] for name in names]
        if not isinstance(record, (list, tuple)) or len(record) != len(names):
            size = f" of {len(record)}" if isinstance(record, (list, tuple)) else ""
            raise MismatchError(
                f"'{names[0]}'",
                f"expected a dict, or a tuple of {len(names)} values, found a "
                f"{type(record).__name__}{size}",
            )
        return record


def _pack_slot(field: Field, values: list[Any]) -> TakenColumn:
    """Pack one slot. values: for each record, a number or string, or a list, tuple or array."""
    if field.shape == ():
        return _numbers(field, values).reshape(-1, 1), None
    lists = [_as_list(field, value) for value in values]
    flat = _numbers(field, [value for one in lists for value in one])
    lengths = np.fromiter((len(one) for one in lists), np.int64, len(lists))
    if field.shape is not None:
        for length in lengths[lengths != field.width]:
            raise _mismatch(field, f"{field.width} values", int(length))
        return flat.reshape(-1, field.width), None
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return flat, offsets


def _as_list(field: Field, value: Any) -> Sequence[Any]:
    if value is None and field.missing is not None:
        return [None] * max(field.width, 1)
    if hasattr(value, "__array__") and np.ndim(value) > 0:
        array = np.asarray(value)
        value = array.reshape(-1).tolist() if field.shape is not None else array.tolist()
    if isinstance(value, (list, tuple)):
        return value
    if value is None or not (np.isscalar(value) or isinstance(value, _TEXTS)):
        raise _mismatch(field, "a list of values", value)
    return [value]


def _numbers(field: Field, values: list[Any]) -> NDArray[Any]:
    if field.missing is not None:
        values = [field.missing if value is None else value for value in values]
    if field.dtype != "float" and field.hash_seed is not None:
        return _ids(field, values)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # nested lists of varying lengths
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise _mismatch(field, "numbers, not nested lists", values[0])
    if field.dtype != "float":
        # NumPy converts ids that do not fit its integer types to floats.
        return _ids(field, values) if array.dtype.kind not in "iub" else _check_ids(field, array)
    if array.dtype.kind not in "fiub":
        odd = (value for value in values if not isinstance(value, (int, float, np.number)))
        raise _mismatch(field, "a number", next(odd, values[0]))
    return _check_floats(field, array)


def _ids(field: Field, values: list[Any]) -> NDArray[np.int64]:
    """Convert strings and numbers, which may need the full 64 bits, to ids."""
    seed = field.hash_seed or 0
    ids = np.empty(len(values), np.uint64)
    for place, value in enumerate(values):
        if isinstance(value, _TEXTS):
            ids[place] = hash64(value, seed)
        elif field.hash_seed is not None and value != field.missing:
            raise _mismatch(field, "a string", value)
        elif isinstance(value, (int, np.integer)) and -(2**63) <= value < 2**64:
            ids[place] = int(value) % 2**64
        else:
            raise _mismatch(field, "a 64-bit id or a string", value)
    return ids.view(np.int64)


def _check_ids(field: Field, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind not in "iub" and len(array) > 0:
        raise _mismatch(field, "a 64-bit id or a string", array[0].item())
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64, copy=False)


def _check_floats(field: Field, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32, copy=False)
    good = np.isfinite(floats)
    if good.all():
        return floats
    if field.missing is not None:
        floats[np.isnan(array)] = field.missing
        good |= np.isnan(array)
    if not good.all():
        raise _mismatch(field, "a finite number of at most 3.4e38", array[~good][0].item())
    return floats


def require_offsets(field: Field, offsets: NDArray[Any], num_values: int) -> None:
    """Raise MismatchError unless the offsets split this number of values into examples."""
    rises = (
        offsets.ndim == 1
        and offsets.dtype.kind in "iu"
        and len(offsets) >= 1
        and offsets[0] == 0
        and offsets[-1] == num_values
        and bool((offsets[1:] >= offsets[:-1]).all())
    )
    if not rises:
        wanted = f"offsets that rise from 0 to the {num_values} values"
        raise _mismatch(field, wanted, offsets.tolist()[:10])


def _check_column(field: Field, column: Any) -> TakenColumn:
    if field.shape is None:
        if not isinstance(column, tuple) or len(column) != 2:
            raise _mismatch(field, "a pair (values [N], offsets [B + 1])", type(column).__name__)
        values, offsets = _array(field, column[0]), np.asarray(column[1])
        require_offsets(field, offsets, len(values))
        return values, offsets.astype(np.int64, copy=False)
    array = np.asarray(column)
    if array.shape[1:] != field.shape or array.ndim == 0:
        raise _mismatch(field, f"an array [B, *{field.shape}]", f"shape {array.shape}")
    return _array(field, array.reshape(-1)).reshape(len(array), field.width), None


def _array(field: Field, values: Any) -> NDArray[Any]:
    """Return a copy of `values` as an array, since the user's function may reuse their memory."""
    array = np.array(values)
    if array.ndim != 1:
        raise _mismatch(field, "an array with one dimension", f"shape {array.shape}")
    if field.dtype != "float":
        is_text = array.dtype.kind in "USO" or field.hash_seed is not None
        return _ids(field, array.tolist()) if is_text else _check_ids(field, array)
    if array.dtype.kind not in "fiub":
        values = array.tolist()
        odd = [value for value in values if not isinstance(value, (int, float, np.number))]
        if odd or not values:
            raise _mismatch(field, "a number", odd[0] if odd else str(array.dtype))
        array = np.array(values, np.float64)
    return _check_floats(field, array)


def _mismatch(field: Field, wanted: str, found: object) -> MismatchError:
    is_missing = found is None or (isinstance(found, float) and math.isnan(found))
    advice = FILL_ADVICE if is_missing and field.missing is None else ""
    return MismatchError(f"'{field.name}'", f"expected {wanted}, found {found!r:.100}{advice}")
