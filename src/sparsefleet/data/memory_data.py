"""Holds all records of a reader in memory, and shuffles them.

In shapes, B is the number of records in a batch.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.field import Slot
from sparsefleet.data.global_shuffle import Dealer, GlobalShuffle, RandomDealer, TextDealer, Workers
from sparsefleet.data.memory_records import (
    CompactColumn,
    CopyArena,
    MemoryRecords,
    Records,
    check_room,
    compact,
    copy_column,
    merge_records,
    num_records_of,
)
from sparsefleet.data.reader import Reader
from sparsefleet.data.reader_stats import ReaderCounts, ReaderStats
from sparsefleet.data.record_source import BatchMaker, TakenColumn
from sparsefleet.errors import ConfigError

_SMALLEST_FLOAT = 1e-6  # as in Fluid, smaller floats are treated as 0

Ragged = tuple[NDArray[Any], NDArray[np.int64]]


def drop_zeros(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """Return the values without zeros; a record may end up empty.

    >>> values, offsets = drop_zeros(np.array([0, 0, 7, 0]), np.array([0, 3, 4]))
    >>> values.tolist(), offsets.tolist()
    ([7], [0, 1, 1])
    """
    kept = np.abs(values) >= _SMALLEST_FLOAT if values.dtype.kind == "f" else values != 0
    if kept.all():
        return values, offsets
    before = np.zeros(len(values) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    return values[kept], before[offsets]


def fill_empty(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """Return the values with one 0 added to each empty record.

    >>> values, offsets = fill_empty(np.array([7]), np.array([0, 1, 1]))
    >>> values.tolist(), offsets.tolist()
    ([7, 0], [0, 1, 2])
    """
    is_empty = offsets[1:] == offsets[:-1]
    if not is_empty.any():
        return values, offsets
    filled = np.insert(values, offsets[:-1][is_empty], 0)
    added = np.zeros(len(offsets), np.int64)
    np.cumsum(is_empty, out=added[1:])
    return filled, offsets + added


class BlockWalk:
    """Takes spans of up to `batch_size` records from contiguous blocks, round robin.

    Training threads with one queue each would produce the same batches: no batch contains records
    from two blocks, and each block may end with a short batch. Thread-safe.

    given: the number of records of each block that an earlier walk has already handed out.

    >>> walk = BlockWalk(7, 3, num_blocks=2)
    >>> [walk.take() for _ in range(4)]
    [(0, 3), (4, 7), (3, 4), None]
    """

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        *,
        num_blocks: int = 1,
        drop_last: bool = False,
        given: Sequence[int] = (),
    ) -> None:
        size, larger = divmod(num_records, num_blocks)
        begins = [block * size + min(block, larger) for block in range(num_blocks + 1)]
        self._begins = begins[:-1]
        self._ends = begins[1:]
        if drop_last:
            self._ends = [
                end - (end - begin) % batch_size
                for begin, end in zip(self._begins, self._ends, strict=True)
            ]
        self._batch_size = batch_size
        self._given = list(given) or [0] * num_blocks
        self._is_over = False
        self._lock = threading.Lock()
        if len(self._given) != num_blocks:
            raise ConfigError(
                f"the state has {len(self._given)} blocks of records, but this data has "
                f"{num_blocks}: use the same number of threads or queues"
            )
        for (begin, end), count in zip(pairwise(begins), self._given, strict=True):
            if not isinstance(count, int) or not 0 <= count <= end - begin:
                raise ConfigError(
                    f"the state says that {count!r} of {end - begin} records in a block were read; "
                    "load the same data"
                )

    def __len__(self) -> int:
        """Return the number of spans in a complete walk."""
        spans = zip(self._begins, self._ends, strict=True)
        return sum(-(-(end - begin) // self._batch_size) for begin, end in spans)

    def take(self) -> tuple[int, int] | None:
        """Return the next span as (first record, one past the last), or None if none are left."""
        with self._lock:
            block = self._next_block()
            if block is None:
                self._is_over = True
                return None
            begin = self._begins[block] + self._given[block]
            end = min(begin + self._batch_size, self._ends[block])
            self._given[block] += end - begin
            return begin, end

    @property
    def is_over(self) -> bool:
        """Whether `take` has returned None. Still False right after the last span was taken."""
        return self._is_over

    @property
    def given(self) -> list[int]:
        """Number of records handed out from each block."""
        with self._lock:
            return list(self._given)

    def _next_block(self) -> int | None:
        """Return the block with the fewest spans taken, among the blocks that have spans left."""
        found: int | None = None
        fewest = 0
        for block, given in enumerate(self._given):
            if self._begins[block] + given >= self._ends[block]:
                continue
            spans = -(-given // self._batch_size)
            if found is None or spans < fewest:
                found, fewest = block, spans
        return found


_VERSION = 2


def load_records(reader: Reader, *, without_zeros: bool) -> MemoryRecords:
    """Read `reader` once; records keep the order of its files, regardless of the number of threads.

    without_zeros: whether to drop zeros in slots without a shape.
    """
    return MemoryRecords(reader.columns, _gather(reader, without_zeros))


def _gather(reader: Reader, without_zeros: bool) -> list[list[CompactColumn]]:
    """Return the columns of each block, in the order of the files."""
    file_numbers = {path: number for number, path in enumerate(reader.files)}
    arenas = _Arenas(len(reader.columns), most_lanes=reader.threads)
    found: list[tuple[tuple[int, int], list[CompactColumn]]] = []
    num_records = 0
    with reader.begin_columns() as blocks:
        while (block := blocks.take()) is not None:
            last = block.marks[-1]  # a block has records from only one file
            lane = arenas.of_file(last.path)
            columns = [
                copy_column(_compact(slot, column, without_zeros), arena)
                for slot, column, arena in zip(reader.columns, block.batch, lane, strict=True)
            ]
            num_records += num_records_of(columns)
            check_room(num_records)
            found.append(((file_numbers[last.path], last.end), columns))
    found.sort(key=lambda pair: pair[0])
    return [columns for _, columns in found]


class _Arenas:
    """One arena per column for each file that is being read.

    The records of a file are then adjacent in memory, as are the files once they are sorted. A new
    file takes over the arenas of the least recently used file, which has most likely been read to
    its end.
    """

    def __init__(self, num_columns: int, *, most_lanes: int) -> None:
        self._num_columns = num_columns
        self._most_lanes = most_lanes
        self._by_file: OrderedDict[str, list[CopyArena]] = OrderedDict()

    def of_file(self, path: str) -> list[CopyArena]:
        lane = self._by_file.pop(path, None)
        if lane is None and len(self._by_file) == self._most_lanes:
            _, lane = self._by_file.popitem(last=False)
        self._by_file[path] = lane = lane or [CopyArena() for _ in range(self._num_columns)]
        return lane


def _compact(slot: Slot, column: TakenColumn, without_zeros: bool) -> CompactColumn:
    values, offsets = column
    if without_zeros and offsets is not None and slot.dtype != "text":
        return compact(drop_zeros(values, offsets))
    return compact(column)


class MemoryPass:
    """An iterator over batches, created by `MemoryData.begin`. Thread-safe; copies run in parallel.

    order: the permutation of records; None means the stored order.
    slot_orders: for each shuffled column, the record from which each record takes its values.
    fills_empty: whether to give one 0 to each record without values in a slot without a shape.
    """

    def __init__(
        self,
        records: MemoryRecords,
        walk: BlockWalk,
        arrangement: BatchMaker,
        counts: ReaderCounts,
        *,
        order: Records | None,
        slot_orders: Mapping[int, Records],
        fills_empty: bool,
    ) -> None:
        self._records = records
        self._walk = walk
        self._arrangement = arrangement
        self._counts = counts
        self._order = order
        self._slot_orders = slot_orders
        self._fills_empty = fills_empty

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        span = self._walk.take()
        if span is None:
            raise StopIteration
        begin, end = span
        if self._order is None:
            some = np.arange(begin, end, dtype=np.uint32)
        else:
            some = self._order[begin:end]
        batch = self._arrangement.arrange(self._take(some), end - begin)
        self._counts.add(records=end - begin, batches=1)
        return batch

    def _take(self, some: Records) -> list[TakenColumn]:
        taken = []
        for index, column in enumerate(self._records.columns):
            other = self._slot_orders.get(index)
            values, offsets = column.take(some if other is None else other[some])
            if self._fills_empty and offsets is not None:
                values, offsets = fill_empty(values, offsets)
            taken.append((values, offsets))
        return taken


def checked_seed(seed: int | None) -> int:
    """Check and return the seed, or return a random seed if it is None.

    >>> checked_seed(7)
    7
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed must be an int >= 0 or None, got {seed!r}")
    return seed


def agree_on_seed(workers: Workers, seed: int, slots: Sequence[Slot], *, was_given: bool) -> int:
    """Return the first worker's seed. Raises an error if the slots or explicit seeds differ."""
    mine = {
        "drawn": seed,
        "seed": seed if was_given else None,
        "slots": [[slot.name, slot.dtype, slot.shape] for slot in slots],
    }
    reported = [json.loads(part) for part in workers.all_gather(json.dumps(mine).encode())]
    for rank, theirs in enumerate(reported):
        for what in ("seed", "slots"):
            if theirs[what] != reported[0][what]:
                raise ConfigError(
                    f"global_shuffle: {what} is {theirs[what]} on worker {rank}, but "
                    f"{reported[0][what]} on worker 0; use the same value on all workers"
                )
    return int(reported[0]["drawn"])


class MemoryData:
    """All records of `reader` in memory, as columns; batches look like the reader's.

    drop_zeros: like Fluid's InMemoryDataset, drop the zeros in slots without a shape; a record with
        no values left gets one 0 in batches.
    num_blocks: take batches round robin from this many contiguous blocks, as that many threads
        would. Each block may end with a short batch, unless the reader's config drops short
        batches.

    Memory: the ids and floats, about one byte per record for each slot of varying length, and four
    bytes per record once shuffled; a few blocks more while loading. Records keep the order of the
    files, regardless of the number of threads; shuffling permutes an index and moves no records.

    >>> import pathlib, tempfile
    >>> from sparsefleet.data import MemoryData, MultiSlot, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0"
    >>> size = path.write_text("1 1\\n1 2\\n1 3\\n")
    >>> data = MemoryData(Reader(path, MultiSlot(Slot("ad", "uint64", ())), batch_size=2))
    >>> [batch["ad"].tolist() for batch in data]
    [[1, 2], [3]]
    >>> data.local_shuffle(seed=1)
    >>> sorted(ad for batch in data for ad in batch["ad"].tolist())
    [1, 2, 3]
    """

    def __init__(self, reader: Reader, *, drop_zeros: bool = False, num_blocks: int = 1) -> None:
        self.batch_size = reader.batch_size
        """Number of records per batch."""
        self.num_blocks = num_blocks
        """Number of blocks that batches are taken from, round robin."""
        self.arrangement = reader.arrangement
        """Converts columns to a batch."""
        self._drop_last = reader.config.drop_last
        self._drops_zeros = drop_zeros
        self.columns = reader.columns
        """The columns of a batch, in order."""
        self.description = reader.format.description
        """How the records were read; see `RecordFormat.description`."""
        before = reader.stats()
        self._records = load_records(reader, without_zeros=drop_zeros)
        self._loading = reader.stats().since(before)
        self._given = ReaderCounts()
        self._order: Records | None = None
        self._slot_orders: dict[int, Records] = {}
        self._seed: list[int] | None = None
        self._dealt: list[list[int]] = []  # seed and number of workers of each global shuffle
        self._walk = self._new_walk()
        self._resumed: BlockWalk | None = None

    def __len__(self) -> int:
        """Number of batches per pass."""
        return len(self._new_walk())

    @property
    def num_records(self) -> int:
        """Number of records in memory."""
        return self._records.num_records

    @property
    def memory_bytes(self) -> int:
        """Memory used by the records and by the permutation that orders them, in bytes."""
        orders = {id(order): order for order in (self._order, *self._slot_orders.values())}
        weights = (order.nbytes for order in orders.values() if order is not None)
        return self._records.num_bytes + sum(weights)

    # -- order --------------------------------------------------------------------------------

    def stats(self) -> ReaderStats:
        """Return the counts of files, lines, bytes and bad lines from loading, and of records and
        batches since.
        """
        given = self._given
        return replace(self._loading, records=given["records"], batches=given["batches"], threads=0)

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the records for all later passes; the same seed gives the same order.

        seed: None draws a random seed.
        """
        self._set_order([checked_seed(seed)])

    def shuffle_slots(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Permute the values of these slots across records, in the same way for all slots.

        The resulting loss of accuracy shows how much a model relies on these slots. Slots that are
        not listed get their own values back, so `[]` undoes the shuffle.
        """
        names = [slot.name for slot in self.columns]
        unknown = sorted(set(slots) - set(names))
        if unknown:
            raise ConfigError(f"no slot is called {unknown[0]!r}; the slots are {names}")
        order = _order_of(self.num_records, [checked_seed(seed)]) if slots else None
        self._slot_orders = {names.index(name): order for name in slots if order is not None}

    def global_shuffle(
        self,
        workers: Workers,
        *,
        seed: int | None = None,
        by: str | None = None,
        block_records: int = 1024,
        pause_s: float = 0.0,
    ) -> None:
        """Redistribute the records randomly over all workers, each to exactly one, and shuffle.

        Must be called by all workers, between passes and with the same arguments; the result
        depends only on the seed, the data and the number of workers. Afterwards, unless `by` is
        given, the workers' record counts differ by at most the number of workers. If a worker or
        server is lost during the shuffle, all workers raise an error and have no records left.

        workers: `sparsefleet.fleet`, or any `Fleet` whose worker has started.
        seed: if None, the first worker draws a random seed.
        by: a slot of dtype "text"; records with equal text go to the same worker.
        block_records: the approximate number of records sent at once.
        pause_s: pause after each block that is sent, to limit network load.
        """
        rank, size = workers.worker_index(), workers.worker_num()
        drawn = checked_seed(seed)
        if size > 1:
            drawn = agree_on_seed(workers, drawn, self.columns, was_given=seed is not None)
            records = self._records
            if by is None:
                dealer: Dealer = RandomDealer(records.num_records, size, (drawn, rank))
            else:
                dealer = TextDealer(records, self._text_slot(by), size)
            self.release_memory()  # a failed shuffle leaves no records
            self._records = GlobalShuffle(
                records,
                workers.open_exchange(),
                dealer,
                block_records=block_records,
                pause_s=pause_s,
            ).run()
        self._dealt.append([drawn, size])
        self._set_order([drawn, rank])

    def merge_by_text(self, slot: str, merge_size: int = 2) -> int:
        """Merge records with equal text in `slot` into one; return how many were dropped.

        For a slot without a shape, the merged record gets the values of the only record that has
        any; for other slots, the values of the last record whose values are not all zeros. Two
        kinds of groups are dropped with a warning: groups whose size is not `merge_size`, if
        `merge_size` is > 0, and groups in which two records have values for a slot without a shape.
        """
        self._records, dropped = merge_records(self._records, self._text_slot(slot), merge_size)
        self._slot_orders = {}
        self._set_order(None)
        return dropped

    def release_memory(self) -> None:
        """Free all records; passes are then empty."""
        self._records = MemoryRecords(self.columns, [])
        self._slot_orders = {}
        self._set_order(None)

    # -- passes -------------------------------------------------------------------------------

    def __iter__(self) -> MemoryPass:
        """Start a pass, in the order of the last shuffle."""
        return self.begin(self.arrangement)

    def begin(self, arrangement: BatchMaker) -> MemoryPass:
        """Start a pass, like `iter()`, with batches made by `arrangement`."""
        self._walk, self._resumed = self._resumed or self._new_walk(), None
        return MemoryPass(
            self._records,
            self._walk,
            arrangement,
            self._given,
            order=self._order,
            slot_orders=self._slot_orders,
            fills_empty=self._drops_zeros,
        )

    # -- state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the order of the records, and the position in the current pass.

        At the end of a pass, the position is the start of the next pass.
        """
        walk = self._resumed or self._walk
        return self._state([0] * len(walk.given) if walk.is_over else walk.given)

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict()`, but resuming from the end of a pass yields no batches."""
        return self._state((self._resumed or self._walk).given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next pass at the position saved in `state`, in the same order.

        The same files must be loaded and, if they were shuffled globally, must have been shuffled
        with the same seeds.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(f"expected a MemoryData state, got {state!r:.200}")
        if state.get("dealt") != self._dealt:
            raise ConfigError(
                f"the state was saved after the global shuffles {state.get('dealt')} (seed, "
                f"workers), but this data has been through {self._dealt}: call global_shuffle with "
                "the same seeds first"
            )
        if state.get("num_records") != self.num_records:
            raise ConfigError(
                f"the state is for {state.get('num_records')} records, but this data has "
                f"{self.num_records}: load the same files"
            )
        try:
            given, seed = list(state["given"]), state["seed"]
            walk = self._new_walk(given if any(given) else ())
            self._set_order(None if seed is None else [checked_seed(part) for part in seed])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"expected a MemoryData state, got {state!r:.200}") from error
        self._resumed = walk

    # -- inside -------------------------------------------------------------------------------

    def _new_walk(self, given: Sequence[int] = ()) -> BlockWalk:
        return BlockWalk(
            self.num_records,
            self.batch_size,
            num_blocks=self.num_blocks,
            drop_last=self._drop_last,
            given=given,
        )

    def _state(self, given: list[int]) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "num_records": self.num_records,
            "dealt": [list(dealt) for dealt in self._dealt],
            "seed": None if self._seed is None else list(self._seed),
            "given": given,
        }

    def _set_order(self, seed: list[int] | None) -> None:
        """Set the order. The next pass starts over, since positions depend on the order."""
        self._order = None if seed is None else _order_of(self.num_records, seed)
        self._seed = seed
        self._walk, self._resumed = self._new_walk(), None

    def _text_slot(self, name: str) -> int:
        for index, slot in enumerate(self.columns):
            if slot.name == name and slot.dtype == "text":
                return index
        raise ConfigError(f"no slot '{name}' with dtype 'text': declare it in the format")


def _order_of(num_records: int, seed: list[int]) -> Records:
    order = np.arange(num_records, dtype=np.uint32)
    np.random.default_rng(seed).shuffle(order)
    return order
