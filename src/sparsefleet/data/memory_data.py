"""All records of a reader in memory, shuffled at will. Letters: B records of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.block_walk import BlockWalk
from sparsefleet.data.dealing import Dealer, RandomDealer, TextDealer
from sparsefleet.data.exchange import Workers
from sparsefleet.data.global_shuffle import GlobalShuffle
from sparsefleet.data.memory_columns import Records
from sparsefleet.data.memory_loading import load_records
from sparsefleet.data.memory_pass import MemoryPass
from sparsefleet.data.memory_records import MemoryRecords
from sparsefleet.data.merging import merge_records
from sparsefleet.data.reader import Reader
from sparsefleet.data.reader_stats import ReaderCounts, ReaderStats
from sparsefleet.data.shuffle_seed import agree_on_seed, checked_seed
from sparsefleet.errors import ConfigError

_VERSION = 2


class MemoryData:
    """The records of one pass over `reader`, as columns; batches as the reader would give them.

    drop_zeros: leave out the zeros in slots without shape, as Fluid's InMemoryDataset does; where
        none is left in a record, batches have one 0.
    num_blocks: batches are taken from so many contiguous blocks in turn, as by as many threads;
        each may end with a short batch, unless the reader's config drops it.

    Memory is what ids and floats take, plus a byte or so for each record of a slot of uneven
    length, plus, once shuffled, four bytes a record; while it is loaded, some blocks more. Records
    are in the order of the files, whatever the reader's threads; shuffling permutes, records stay
    where they are.

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
        """Records of a batch."""
        self.num_blocks = num_blocks
        """Blocks that batches are taken from in turn."""
        self.arrangement = reader.arrangement
        """How columns become a batch."""
        self._drop_last = reader.config.drop_last
        self._drops_zeros = drop_zeros
        self.columns = reader.columns
        """The columns of a batch, in order."""
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
        """Batches of a pass."""
        return len(self._new_walk())

    @property
    def num_records(self) -> int:
        """Records in memory."""
        return self._records.num_records

    @property
    def memory_bytes(self) -> int:
        """What the records and their order take."""
        orders = {id(order): order for order in (self._order, *self._slot_orders.values())}
        weights = (order.nbytes for order in orders.values() if order is not None)
        return self._records.num_bytes + sum(weights)

    # -- order --------------------------------------------------------------------------------

    def stats(self) -> ReaderStats:
        """Files, lines, bytes and bad lines of the loading; records and batches given since."""
        given = self._given
        return replace(self._loading, records=given["records"], batches=given["batches"], threads=0)

    def local_shuffle(self, seed: int | None = None) -> None:
        """Another order for the passes that begin from now on: the same for the same seed.

        seed: None draws one.
        """
        self._set_order([checked_seed(seed)])

    def shuffle_slots(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Gives the values of these slots to other records, those of one record to the same.

        What a model loses by it is what the slots are worth. Other slots get back their own;
        `[]` undoes it.
        """
        names = [slot.name for slot in self.columns]
        unknown = sorted(set(slots) - set(names))
        if unknown:
            raise ConfigError(f"there is no slot {unknown[0]!r}: the slots are {names}")
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
        """Deals the records over all workers, each to exactly one, and shuffles them there.

        All workers call it, between passes and with the same arguments; the outcome is the same
        for the same seed, data and number of workers. Each has as many records afterwards, give
        or take one for each worker. If a worker or a server is lost meanwhile, all raise
        and have no records any more.

        workers: `sparsefleet.fleet.fleet`, or any Fleet whose worker has begun.
        seed: None: the first worker draws one.
        by: a slot of dtype "text"; records of equal text go to the same worker.
        block_records: records that are sent at once, about.
        pause_s: after each block that was sent, to spare the network.
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
            self.release_memory()  # a shuffle that fails leaves nothing
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
        """Makes one record of those with equal text in `slot`; returns how many were dropped.

        Slots without shape get the values of the one record that has any, others those of the last
        record that has not only zeros. Dropped, with a warning: groups of another size than
        `merge_size`, if that is > 0, and those in which two records have values of a slot.
        """
        self._records, dropped = merge_records(self._records, self._text_slot(slot), merge_size)
        self._slot_orders = {}
        self._set_order(None)
        return dropped

    def release_memory(self) -> None:
        """Forgets all records; there are none to iterate then."""
        self._records = MemoryRecords(self.columns, [])
        self._slot_orders = {}
        self._set_order(None)

    # -- passes -------------------------------------------------------------------------------

    def __iter__(self) -> MemoryPass:
        """One pass, in the order of the last shuffle before it."""
        return self.begin(self.arrangement)

    def begin(self, arrangement: Arrangement) -> MemoryPass:
        """As `iter()`, with batches arranged otherwise."""
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
        """The order, and how many records the last pass that was begun has given.

        At its end, the beginning of the next one.
        """
        walk = self._resumed or self._walk
        return self._state([0] * len(walk.given) if walk.is_over else walk.given)

    def finished_state_dict(self) -> dict[str, Any]:
        """As `state_dict`, also at the end of the pass: going on there gives nothing."""
        return self._state((self._resumed or self._walk).given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken, in its order.

        The same files must be loaded and, if they were, dealt over the workers with the same seed.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(f"this is no state of MemoryData: {state!r:.200}")
        if state.get("dealt") != self._dealt:
            raise ConfigError(
                f"the state is of records after the global shuffles {state.get('dealt')} (seed, "
                f"workers), here were {self._dealt}: call global_shuffle with these seeds first"
            )
        if state.get("num_records") != self.num_records:
            raise ConfigError(
                f"the state is of {state.get('num_records')} records, these are "
                f"{self.num_records}: load the same files"
            )
        try:
            given, seed = list(state["given"]), state["seed"]
            walk = self._new_walk(given if any(given) else ())
            self._set_order(None if seed is None else [checked_seed(part) for part in seed])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this is no state of MemoryData: {state!r:.200}") from error
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
        """The next pass is whole: places of passes before do not hold in another order."""
        self._order = None if seed is None else _order_of(self.num_records, seed)
        self._seed = seed
        self._walk, self._resumed = self._new_walk(), None

    def _text_slot(self, name: str) -> int:
        for index, slot in enumerate(self.columns):
            if slot.name == name and slot.dtype == "text":
                return index
        raise ConfigError(f"there is no slot '{name}' with dtype 'text': declare it in the format")


def _order_of(num_records: int, seed: list[int]) -> Records:
    order = np.arange(num_records, dtype=np.uint32)
    np.random.default_rng(seed).shuffle(order)
    return order
