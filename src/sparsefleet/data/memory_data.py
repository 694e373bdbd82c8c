"""All records of a reader in memory, shuffled at will. Letters: B records of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.memory_columns import FixedColumn, MemoryColumn, Records, ragged_column
from sparsefleet.data.reader import Reader
from sparsefleet.data.reader_stats import ReaderStats
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError, DataError

_MAX_RECORDS = 2**32 - 1
_VERSION = 1


class MemoryData:
    """The records of one pass over `reader`, as columns; batches as the reader would give them.

    Memory is what ids and floats take, plus a byte or so for each record of a slot of uneven
    length, plus, once shuffled, four bytes a record. Shuffling permutes; records stay where they
    are. The last batch may be short, unless the reader's config drops it.

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

    def __init__(self, reader: Reader) -> None:
        self._batch_size = reader.batch_size
        self._drop_last = reader.config.drop_last
        self._arrangement: Arrangement = reader.arrangement
        self._columns: list[MemoryColumn] = []
        self._num_records = 0
        self._order: Records | None = None
        self._seed: int | None = None
        self._next_record = 0
        self._resume_at = 0
        self._given_records = 0
        self._given_batches = 0
        before = reader.stats()
        self._load(reader)
        self._loaded = reader.stats().since(before)

    def __len__(self) -> int:
        """Batches of a pass."""
        whole, rest = divmod(self._num_records, self._batch_size)
        return whole if rest == 0 or self._drop_last else whole + 1

    @property
    def num_records(self) -> int:
        """Records in memory."""
        return self._num_records

    @property
    def memory_bytes(self) -> int:
        """What the records and their order take."""
        order = 0 if self._order is None else self._order.nbytes
        return order + sum(column.num_bytes for column in self._columns)

    def stats(self) -> ReaderStats:
        """Files, lines, bytes and bad lines of the loading; records and batches given since."""
        return replace(
            self._loaded, records=self._given_records, batches=self._given_batches, threads=0
        )

    def local_shuffle(self, seed: int | None = None) -> None:
        """Another order for the passes that begin from now on: the same for the same seed.

        seed: None draws one.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ConfigError(f"seed must be an int >= 0 or None, got {seed!r}")
        self._order = _order_of(self._num_records, seed)
        self._seed = seed

    def release_memory(self) -> None:
        """Forgets all records; there are none to iterate then."""
        self._columns = []
        self._order = None
        self._num_records = 0

    def __iter__(self) -> Iterator[Any]:
        """One pass, in the order of the last shuffle before it."""
        begin, self._resume_at = self._resume_at, 0
        return self._batches(begin, self._order, self._num_records)

    def _batches(self, begin: int, order: Records | None, num_records: int) -> Iterator[Any]:
        columns = self._columns
        self._next_record = begin
        while begin < num_records:
            end = min(begin + self._batch_size, num_records)
            if end - begin < self._batch_size and self._drop_last:
                break
            records = np.arange(begin, end, dtype=np.uint32) if order is None else order[begin:end]
            taken = [_as_taken(column.take(records)) for column in columns]
            batch = self._arrangement.arrange(taken, end - begin)
            self._given_records += end - begin
            self._given_batches += 1
            self._next_record = begin = end
            yield batch
        self._next_record = 0

    def state_dict(self) -> dict[str, Any]:
        """The order, and how many records the last pass that was begun has given."""
        return {
            "version": _VERSION,
            "num_records": self._num_records,
            "seed": self._seed,
            "next_record": self._resume_at or self._next_record,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken, in its order.

        The records must be loaded in the order of then: by a reader with one thread.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(f"this is no state of MemoryData: {state!r:.200}")
        if state.get("num_records") != self._num_records:
            raise ConfigError(
                f"the state is of {state.get('num_records')} records, these are "
                f"{self._num_records}: load the same files"
            )
        self._order = None
        self._seed = None
        if state["seed"] is not None:
            self.local_shuffle(state["seed"])
        self._next_record = 0
        self._resume_at = int(state["next_record"])

    def _load(self, reader: Reader) -> None:
        parts: list[list[Any]] = [[] for _ in reader.columns]
        with reader.begin_columns() as batches:
            for taken in batches:
                self._num_records += _records_in(reader.columns, taken)
                if self._num_records > _MAX_RECORDS:
                    raise DataError(
                        f"more than {_MAX_RECORDS} records do not fit into one MemoryData: give "
                        "each worker fewer files"
                    )
                for column, part in zip(parts, taken, strict=True):
                    column.append(part)
        if self._num_records == 0:
            return
        for slot in reader.columns:
            # The batches of a column are let go before the next is joined: what is needed beyond
            # the records is one column.
            part = parts.pop(0)
            if slot.shape is None:
                self._columns.append(ragged_column(part))
            else:
                self._columns.append(FixedColumn([values for values, _ in part]))


def _order_of(num_records: int, seed: int) -> Records:
    order = np.arange(num_records, dtype=np.uint32)
    np.random.default_rng(seed).shuffle(order)
    return order


def _as_taken(column: Any) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    return column if isinstance(column, tuple) else (column, None)


def _records_in(columns: tuple[Slot, ...], taken: list[Any]) -> int:
    values, offsets = taken[0]
    return len(values) if columns[0].shape is not None else len(offsets) - 1
