"""Distributes records over all workers; each record ends up on exactly one worker.

Workers exchange records as blocks of bytes. Format (little-endian; arrays start at multiples of 8
bytes):

    block  = magic "SFRB", version u16, columns u16, sender u32, number u32, B u64,
             per column (dtype u8, bytes of a length u8, 0 u16, 0 u32, N u64), then its arrays
    arrays = lengths unsigned[B] of a slot without shape, values of dtype[N]
    end    = magic "SFRE", version u16, 0 u16, sender u32, blocks u32, records u64

In shapes, B is the number of records in a block and N the number of values.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from time import sleep
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.field import Slot
from sparsefleet.data.memory_records import (
    CompactColumn,
    CopyArena,
    MemoryRecords,
    compact,
    copy_column,
    num_records_of,
)
from sparsefleet.errors import InternalError, ProtocolError

Ranks = NDArray[np.uint16]
_VERSION = 1
_BLOCKS_AT_ONCE = 64  # packed and sent together
_HEAD = struct.Struct("<4sHHIIQ")
_COLUMN = struct.Struct("<BBHIQ")
_BLOCK_MAGIC = b"SFRB"
_END_MAGIC = b"SFRE"
_DTYPES = (np.dtype("<i8"), np.dtype("<f4"), np.dtype("u1"))
_CODES = {"uint64": 0, "float": 1, "text": 2}


class Exchange(Protocol):
    """An exchange of bytes in which every worker sends to every other worker.

    One thread calls `send` and another `receive`. If any worker fails, the exchange fails for all,
    with an error that names the worker.
    """

    @property
    def rank(self) -> int:
        """The index of this worker."""

    @property
    def size(self) -> int:
        """The number of workers."""

    def send(self, to: int, data: bytes) -> None:
        """Send the data, and wait while the receiver has too much unread data."""

    def send_all(self, letters: Sequence[tuple[int, bytes]]) -> None:
        """Send data to several workers, with fewer requests than one `send` per worker."""

    def receive(self) -> list[bytes]:
        """Wait for data and return everything that has arrived, at least one message."""

    def fail(self, error: BaseException) -> None:
        """Report that this worker failed; the others raise an error now or on their next call."""

    def close(self) -> None:
        """Wait until all workers have received everything.

        Raises an error if a worker is lost before then.
        """


class Workers(Protocol):
    """The workers of a job: the module `sparsefleet.fleet`, or a `Fleet`."""

    def worker_index(self) -> int: ...

    def worker_num(self) -> int: ...

    def all_gather(self, data: bytes) -> list[bytes]: ...

    def open_exchange(self) -> Exchange:
        """Open an exchange once all workers have called this."""


class Dealer(Protocol):
    """Decides which worker gets each record."""

    def ranks(self, begin: int, end: int) -> Ranks:
        """Return the rank of the worker that gets each of the records [begin, end)."""


class RandomDealer:
    """Deals records at random, with a seed; the workers' counts differ by at most one.

    >>> dealer = RandomDealer(7, 3, seed=(1, 0))
    >>> sorted(np.bincount(dealer.ranks(0, 7)).tolist())
    [2, 2, 3]
    """

    def __init__(self, num_records: int, num_workers: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        # Which workers get one extra record is also random, so that many workers with few records
        # stay balanced.
        turn = np.roll(np.arange(num_workers, dtype=np.uint16), rng.integers(num_workers))
        self._ranks: Ranks = np.resize(turn, num_records)
        rng.shuffle(self._ranks)

    def ranks(self, begin: int, end: int) -> Ranks:
        return self._ranks[begin:end]


class TextDealer:
    """Sends records with equal text to the same worker, hash64(text) % number of workers."""

    def __init__(self, records: MemoryRecords, column: int, num_workers: int) -> None:
        self._column = records.columns[column] if records.columns else None
        self._num_workers = num_workers

    def ranks(self, begin: int, end: int) -> Ranks:
        if self._column is None:
            return np.empty(0, np.uint16)
        texts, offsets = self._column.take(np.arange(begin, end, dtype=np.uint32))
        assert offsets is not None
        hashes = _core.hash_texts(texts, offsets, 0).view(np.uint64)
        ranks: Ranks = (hashes % np.uint64(self._num_workers)).astype(np.uint16)
        return ranks


class GlobalShuffle:
    """One worker's part in a shuffle: sends its records and receives the records dealt to it.

    records: the records to send. They are freed from the end as they are sent, so memory holds only
        a few blocks on top of the data.
    block_records: the approximate number of records in a block.
    pause_s: pause after each block that is sent.

    Sending and receiving run concurrently, so workers cannot deadlock.
    """

    def __init__(
        self,
        records: MemoryRecords,
        exchange: Exchange,
        dealer: Dealer,
        *,
        block_records: int = 1024,
        pause_s: float = 0.0,
    ) -> None:
        self._records = records
        self._exchange = exchange
        self._dealer = dealer
        self._block_records = block_records
        self._pause_s = pause_s
        self._sent = [[0, 0] for _ in range(exchange.size)]  # blocks, records to each worker
        self._came: list[dict[int, list[CompactColumn]]] = [{} for _ in range(exchange.size)]
        self._arenas = [[CopyArena() for _ in records.slots] for _ in range(exchange.size)]
        self._ends: dict[int, EndOfRecords] = {}
        self._error: BaseException | None = None

    def run(self) -> MemoryRecords:
        """Return this worker's new records; their order depends only on how they were dealt."""
        receiver = threading.Thread(target=self._receive, name="sparsefleet-shuffle", daemon=True)
        receiver.start()
        try:
            self._send_all()
        except BaseException as error:
            cause = (
                self._error or error
            )  # if receiving failed first, sending failed only because of that
            self._exchange.fail(cause)
            receiver.join()
            raise cause from None
        receiver.join()
        if self._error is not None:
            raise self._error
        self._exchange.close()
        parts = [came[number] for came in self._came for number in sorted(came)]
        self._came.clear()
        self._arenas.clear()
        return MemoryRecords(self._records.slots, parts)

    # -- out ----------------------------------------------------------------------------------

    def _send_all(self) -> None:
        records = self._records
        step = self._block_records * self._exchange.size
        while records.num_records:
            begin = max(0, records.num_records - step)
            ranks = self._dealer.ranks(begin, records.num_records)
            blocks: list[tuple[int, bytes]] = []
            for rank in range(self._exchange.size):
                for block in self._blocks_of(rank, np.flatnonzero(ranks == rank) + begin):
                    blocks.append((rank, block))
                    if self._pause_s or len(blocks) >= _BLOCKS_AT_ONCE:
                        self._send(blocks)
            self._send(blocks)
            records.truncate(begin)
        ends = [
            (rank, pack_end(EndOfRecords(self._exchange.rank, num_blocks, num_records)))
            for rank, (num_blocks, num_records) in enumerate(self._sent)
            if rank != self._exchange.rank
        ]
        self._exchange.send_all(ends)

    def _send(self, blocks: list[tuple[int, bytes]]) -> None:
        """Send the collected blocks, each with the rank of its receiver, and empty the list."""
        self._exchange.send_all(blocks)
        if blocks and self._pause_s:
            sleep(self._pause_s)  # requested, to limit network load
        blocks.clear()

    def _blocks_of(
        self, rank: int, chosen: np.ndarray[tuple[int], np.dtype[np.intp]]
    ) -> Iterator[bytes]:
        """Yield the blocks for worker `rank`; if that is this worker, keep its records instead."""
        for begin in range(0, len(chosen), self._block_records):
            some = chosen[begin : begin + self._block_records].astype(np.uint32)
            columns = [compact(column) for column in self._records.take(some)]
            number = self._sent[rank][0]
            self._sent[rank][0] += 1
            self._sent[rank][1] += len(some)
            if rank == self._exchange.rank:
                self._keep(RecordBlock(rank, number, columns))
                continue
            yield pack_block(RecordBlock(self._exchange.rank, number, columns))

    # -- in -----------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while not self._has_everything():
                for data in self._exchange.receive():
                    self._accept(unpack(data, self._records.slots))
        except BaseException as error:  # thread boundary: raised by `run`
            self._error = error
            self._exchange.fail(error)

    def _accept(self, came: RecordBlock | EndOfRecords) -> None:
        if not 0 <= came.sender < self._exchange.size or came.sender == self._exchange.rank:
            raise ProtocolError(f"got records from worker {came.sender}, which is not in the job")
        if isinstance(came, EndOfRecords):
            self._ends[came.sender] = came
            return
        if came.number in self._came[came.sender]:
            raise InternalError(f"got block {came.number} of worker {came.sender} twice")
        self._keep(came)

    def _keep(self, block: RecordBlock) -> None:
        """Copy the block column by column, so a column can be freed once its records are joined."""
        arenas = self._arenas[block.sender]
        columns = [copy_column(*one) for one in zip(block.columns, arenas, strict=True)]
        self._came[block.sender][block.number] = columns

    def _has_everything(self) -> bool:
        if len(self._ends) < self._exchange.size - 1:
            return False
        for sender, end in self._ends.items():
            came = self._came[sender]
            if len(came) < end.num_blocks:
                return False
            if sum(num_records_of(columns) for columns in came.values()) != end.num_records:
                raise InternalError(f"some records from worker {sender} are missing")
        return True


class RecordBlock(NamedTuple):
    """Records that one worker sent to another; blocks are numbered from 0 per receiver."""

    sender: int
    number: int
    columns: list[CompactColumn]


class EndOfRecords(NamedTuple):
    """Notifies this worker that the sender has no more records for it."""

    sender: int
    num_blocks: int
    num_records: int


def pack_block(block: RecordBlock) -> bytes:
    """Encode a block as bytes."""
    num_records = num_records_of(block.columns)
    head = _HEAD.pack(
        _BLOCK_MAGIC, _VERSION, len(block.columns), block.sender, block.number, num_records
    )
    kinds = []
    arrays: list[NDArray[Any]] = []
    for values, lengths in block.columns:
        length_bytes = 0 if lengths is None else lengths.itemsize
        kinds.append(_COLUMN.pack(_DTYPES.index(values.dtype), length_bytes, 0, 0, values.size))
        if lengths is not None:
            arrays.append(lengths)
        arrays.append(values)
    parts = [head, *kinds]
    for array in arrays:
        parts += [array.tobytes(), bytes(-array.nbytes % 8)]
    return b"".join(parts)


def pack_end(end: EndOfRecords) -> bytes:
    """Encode the end message as bytes."""
    return _HEAD.pack(_END_MAGIC, _VERSION, 0, end.sender, end.num_blocks, end.num_records)


def unpack(data: bytes, slots: Sequence[Slot]) -> RecordBlock | EndOfRecords:
    """Decode a packed message. Raises ProtocolError if it is incomplete or its columns do not match
    the slots.

    Values are views of `data`.
    """
    if len(data) < _HEAD.size:
        raise ProtocolError(
            f"a block of records must have at least {_HEAD.size} bytes, got {len(data)}"
        )
    magic, version, num_columns, sender, number, count = _HEAD.unpack_from(data)
    if magic not in (_BLOCK_MAGIC, _END_MAGIC) or version != _VERSION:
        raise ProtocolError(
            f"a block of records must start with {_BLOCK_MAGIC!r} and version {_VERSION}, got "
            f"{magic!r} and {version}: all workers must run the same version"
        )
    if magic == _END_MAGIC:
        return EndOfRecords(sender, number, count)
    if num_columns != len(slots):
        raise ProtocolError(
            f"worker {sender} sent {num_columns} columns, but this worker has {len(slots)} slots"
        )
    begin = _HEAD.size + num_columns * _COLUMN.size
    if len(data) < begin:
        raise ProtocolError(
            f"worker {sender} sent {len(data)} bytes, fewer than the {begin} bytes of a header"
        )
    reader = _ArrayReader(data, begin, sender)
    columns = []
    for index, slot in enumerate(slots):
        code, length_bytes, _, _, num_values = _COLUMN.unpack_from(
            data, _HEAD.size + index * _COLUMN.size
        )
        _check_column(slot, sender, (code, length_bytes), num_values, count)
        lengths = None
        if slot.shape is None:
            lengths = reader.take_lengths(slot, length_bytes, count, num_values)
        values = reader.take(_DTYPES[code], num_values)
        columns.append((values if lengths is not None else values.reshape(-1, slot.width), lengths))
    reader.finish()
    return RecordBlock(sender, number, columns)


class _ArrayReader:
    """Reads arrays in sequence, checking that none exceeds the data."""

    def __init__(self, data: bytes, begin: int, sender: int) -> None:
        self._data = data
        self._at = begin
        self._sender = sender

    def take_lengths(
        self, slot: Slot, length_bytes: int, num_records: int, num_values: int
    ) -> NDArray[Any]:
        lengths = self.take(np.dtype(f"<u{length_bytes}"), num_records)
        total = int(lengths.sum(dtype=np.uint64))
        if total != num_values:
            raise ProtocolError(
                f"worker {self._sender} sent {num_values} values of slot '{slot.name}', but their "
                f"lengths add up to {total}"
            )
        return lengths

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError(
                f"worker {self._sender} sent {len(self._data)} bytes, but its columns end at "
                f"byte {self._at}"
            )

    def take(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        num_bytes = count * dtype.itemsize
        if num_bytes > len(self._data) - self._at:
            raise ProtocolError(
                f"worker {self._sender} sent {len(self._data)} bytes, too few for its columns"
            )
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at = min(self._at + num_bytes + -num_bytes % 8, len(self._data))
        return array


def _check_column(
    slot: Slot, sender: int, kind: tuple[int, int], num_values: int, num_records: int
) -> None:
    code, length_bytes = kind
    is_ragged = slot.shape is None
    fits = is_ragged or num_values == num_records * slot.width
    of_kind = code == _CODES[slot.dtype] and length_bytes in ((1, 2, 4) if is_ragged else (0,))
    if not (fits and of_kind):
        raise ProtocolError(
            f"worker {sender} sent values for slot '{slot.name}' with a type that differs from the "
            "one declared here: all workers must declare the same slots"
        )
