"""Records dealt over all workers: each ends at exactly one. Letters: B records of a block."""

from __future__ import annotations

import threading
from time import sleep

import numpy as np

from sparsefleet.data.copy_arena import CopyArena
from sparsefleet.data.dealing import Dealer
from sparsefleet.data.exchange import Exchange
from sparsefleet.data.memory_columns import CompactColumn, compact, copy_column
from sparsefleet.data.memory_records import MemoryRecords, num_records_of
from sparsefleet.data.record_block import (
    EndOfRecords,
    RecordBlock,
    pack_block,
    pack_end,
    unpack,
)
from sparsefleet.errors import InternalError, ProtocolError


class GlobalShuffle:
    """One worker's part: gives its records away and takes in what is dealt to it.

    records: let go from the end on as they are sent, so that beyond the data itself there are
        only a few blocks in memory.
    block_records: records of a block for one worker, about.
    pause_s: after each block that was sent.

    Sending and receiving go on at the same time, so that no worker waits for one that waits for it.
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
        """What this worker has afterwards, in an order that follows from the dealing alone."""
        receiver = threading.Thread(target=self._receive, name="sparsefleet-shuffle", daemon=True)
        receiver.start()
        try:
            self._send_all()
        except BaseException as error:
            cause = self._error or error  # sending fails where receiving has failed before
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
            for rank in range(self._exchange.size):
                self._send_chosen(rank, np.flatnonzero(ranks == rank) + begin)
            records.truncate(begin)
        for rank, (num_blocks, num_records) in enumerate(self._sent):
            if rank != self._exchange.rank:
                end = EndOfRecords(self._exchange.rank, num_blocks, num_records)
                self._exchange.send(rank, pack_end(end))

    def _send_chosen(self, rank: int, chosen: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        for begin in range(0, len(chosen), self._block_records):
            some = chosen[begin : begin + self._block_records].astype(np.uint32)
            columns = [compact(column) for column in self._records.take(some)]
            number = self._sent[rank][0]
            self._sent[rank][0] += 1
            self._sent[rank][1] += len(some)
            if rank == self._exchange.rank:
                self._keep(RecordBlock(rank, number, columns))
                continue
            block = pack_block(RecordBlock(self._exchange.rank, number, columns))
            self._exchange.send(rank, block)
            if self._pause_s:
                sleep(self._pause_s)  # asked for: spares the network

    # -- in -----------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while not self._has_everything():
                for data in self._exchange.receive():
                    self._accept(unpack(data, self._records.slots))
        except BaseException as error:  # the thread's edge: raised by `run`
            self._error = error
            self._exchange.fail(error)

    def _accept(self, came: RecordBlock | EndOfRecords) -> None:
        if not 0 <= came.sender < self._exchange.size or came.sender == self._exchange.rank:
            raise ProtocolError(f"records came from worker {came.sender}, who is none of the job")
        if isinstance(came, EndOfRecords):
            self._ends[came.sender] = came
            return
        if came.number in self._came[came.sender]:
            raise InternalError(f"block {came.number} of worker {came.sender} came twice")
        self._keep(came)

    def _keep(self, block: RecordBlock) -> None:
        """Column by column, so that each can be let go when its records are put together."""
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
                raise InternalError(f"not as many records came from worker {sender} as it sent")
        return True
