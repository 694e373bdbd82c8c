from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.workers_in_process import WorkerOf, as_workers

from sparsefleet.data import MemoryData, MultiSlot, Reader, ReaderConfig, Slot, hash64
from sparsefleet.data.global_shuffle import (
    EndOfRecords,
    RandomDealer,
    RecordBlock,
    pack_block,
    pack_end,
    unpack,
)
from sparsefleet.data.memory_records import compact
from sparsefleet.errors import ConfigError, PeerLostError, ProtocolError

FORMAT = MultiSlot(
    Slot("line", "text"), Slot("key", "uint64", ()), Slot("ids"), Slot("dense", "float", (2,))
)
WITH_END = ReaderConfig(include_last_offset=True)
PER_WORKER = 700


def write_records(path: Path, keys: range) -> None:
    lines = []
    for key in keys:
        ids = " ".join(str(key * 10 + i) for i in range(key % 4 + 1))
        lines.append(f"1 line-{key // 2} 1 {key} {key % 4 + 1} {ids} 2 {key} {key + 0.5}\n")
    path.write_text("".join(lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file for each of four workers."""
    for rank in range(4):
        write_records(tmp_path / f"part-{rank}", range(rank * PER_WORKER, (rank + 1) * PER_WORKER))
    return tmp_path


def load(folder: Path, worker: WorkerOf) -> MemoryData:
    path = folder / f"part-{worker.worker_index()}"
    return MemoryData(Reader(path, FORMAT, 50, config=WITH_END))


def keys_of(data: MemoryData) -> list[int]:
    """Return the keys in order; all other values must match their key."""
    found = []
    for batch in data:
        values, offsets = batch["ids"]
        for row, key in enumerate(batch["key"].tolist()):
            ids = values[offsets[row] : offsets[row + 1]].tolist()
            assert ids == [key * 10 + i for i in range(key % 4 + 1)]
            assert batch["dense"][row].tolist() == [key, key + 0.5]
            found.append(key)
    return found


def shuffled(folder: Path, size: int, **how: object) -> list[list[int]]:
    def work(worker: WorkerOf) -> list[int]:
        data = load(folder, worker)
        data.global_shuffle(worker, block_records=64, **how)  # type: ignore[arg-type]
        return keys_of(data)

    return as_workers(size, work)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_record_ends_whole_at_exactly_one_worker(folder: Path, size: int) -> None:
    found = shuffled(folder, size, seed=3)
    everything = [key for keys in found for key in keys]
    assert sorted(everything) == list(range(size * PER_WORKER))
    assert everything != sorted(everything)
    for rank, keys in enumerate(found):
        assert abs(len(keys) - PER_WORKER) <= size
        origins = Counter(key // PER_WORKER for key in keys)
        assert len(origins) == size, f"worker {rank} has records of {origins} only"


def test_the_outcome_follows_from_seed_and_data(folder: Path) -> None:
    first = shuffled(folder, 4, seed=3)
    assert shuffled(folder, 4, seed=3) == first
    assert shuffled(folder, 4, seed=4) != first


def test_without_a_seed_workers_agree_on_one(folder: Path) -> None:
    found = shuffled(folder, 2)
    assert sorted(found[0] + found[1]) == list(range(2 * PER_WORKER))


def test_shuffling_again_deals_again(folder: Path) -> None:
    def work(worker: WorkerOf) -> tuple[list[int], list[int]]:
        data = load(folder, worker)
        data.global_shuffle(worker, seed=1)
        first = keys_of(data)
        data.global_shuffle(worker, seed=2)
        return first, keys_of(data)

    found = as_workers(2, work)
    assert set(found[0][0]) != set(found[0][1])
    assert sorted(found[0][1] + found[1][1]) == list(range(2 * PER_WORKER))


def test_records_of_equal_text_meet_at_the_worker_of_its_hash(folder: Path) -> None:
    for rank, keys in enumerate(shuffled(folder, 3, by="line", seed=0)):
        assert keys
        for key in keys:
            assert hash64(f"line-{key // 2}") % 3 == rank


def test_a_state_after_a_global_shuffle_wants_the_same_one(folder: Path) -> None:
    def work(worker: WorkerOf) -> None:
        data = load(folder, worker)
        data.global_shuffle(worker, seed=7)
        batches = iter(data)
        given = [next(batches)["key"].tolist() for _ in range(3)]
        state = data.state_dict()
        rest = [batch["key"].tolist() for batch in batches]
        again = load(folder, worker)
        with pytest.raises(ConfigError, match="global shuffles"):
            again.load_state_dict(state)
        again.global_shuffle(worker, seed=7)
        again.load_state_dict(state)
        assert [batch["key"].tolist() for batch in again] == rest
        assert [batch["key"].tolist() for batch in again] == given + rest

    as_workers(2, work)


def test_a_worker_without_records_gets_its_share(folder: Path) -> None:
    def work(worker: WorkerOf) -> int:
        files = [folder / "part-0"]
        reader = Reader(files, FORMAT, 50, worker_index=worker.worker_index(), worker_num=2)
        data = MemoryData(reader)
        data.global_shuffle(worker, seed=5)
        return data.num_records

    assert as_workers(2, work) == [PER_WORKER // 2, PER_WORKER // 2]


def test_workers_must_want_the_same(folder: Path) -> None:
    def work(worker: WorkerOf) -> None:
        load(folder, worker).global_shuffle(worker, seed=worker.worker_index())

    with pytest.raises(ConfigError, match="seed is 1 on worker 1, but 0 on worker 0"):
        as_workers(2, work)
    with pytest.raises(ConfigError, match="no slot 'ids' with dtype 'text'"):
        shuffled(folder, 2, by="ids", seed=1)


def test_a_worker_that_fails_ends_it_for_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []

    def work(worker: WorkerOf) -> None:
        data = load(folder, worker)
        if worker.worker_index() == 1:
            monkeypatch.setattr(data._records, "take", broken)
        try:
            data.global_shuffle(worker, block_records=8, seed=1)
        except (PeerLostError, MemoryError) as error:
            raised.append(type(error))
            assert data.num_records == 0

    def broken(records: object) -> None:
        raise MemoryError("no room")

    as_workers(3, work)
    assert sorted(kind.__name__ for kind in raised) == [
        "MemoryError",
        "PeerLostError",
        "PeerLostError",
    ]


def test_little_more_than_the_data_is_in_memory(tmp_path: Path) -> None:
    slots = MultiSlot(*[Slot(f"c{i}") for i in range(20)])
    for rank in range(2):
        line = " ".join(["1 7"] * 19 + ["2 8 9"]) + "\n" + " ".join(["1 7"] * 20) + "\n"
        (tmp_path / f"part-{rank}").write_text(line * 20_000)
    data: dict[int, MemoryData] = {}

    def load(worker: WorkerOf) -> None:
        rank = worker.worker_index()
        data[rank] = MemoryData(Reader(tmp_path / f"part-{rank}", slots, 1000))

    def shuffle(worker: WorkerOf) -> None:
        data[worker.worker_index()].global_shuffle(worker, seed=1)

    tracemalloc.start()
    try:
        as_workers(2, load)
        whole = sum(one.memory_bytes for one in data.values())
        tracemalloc.reset_peak()
        as_workers(2, shuffle)
        _, peak = tracemalloc.get_traced_memory()
        assert peak <= 1.3 * whole
    finally:
        tracemalloc.stop()


def test_dealing_is_even_and_follows_from_the_seed() -> None:
    ranks = RandomDealer(10_001, 7, (1, 2)).ranks(0, 10_001)
    counts = np.bincount(ranks)
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(ranks, RandomDealer(10_001, 7, (1, 2)).ranks(0, 10_001))
    assert not np.array_equal(ranks, RandomDealer(10_001, 7, (1, 3)).ranks(0, 10_001))


SLOTS = FORMAT.columns


def block_of(folder: Path) -> RecordBlock:
    data = MemoryData(Reader(folder / "part-0", FORMAT, 50))
    some = np.array([3, 5, 600], np.uint32)
    return RecordBlock(2, 9, [compact(column) for column in data._records.take(some)])


def test_blocks_come_out_as_they_went_in(folder: Path) -> None:
    block = block_of(folder)
    found = unpack(pack_block(block), SLOTS)
    assert isinstance(found, RecordBlock)
    assert found[:2] == (2, 9)
    for (values, lengths), (mine, my_lengths) in zip(found.columns, block.columns, strict=True):
        assert np.array_equal(values, mine)
        assert values.shape == mine.shape
        assert np.array_equal(lengths, my_lengths)  # type: ignore[arg-type]
    end = EndOfRecords(1, 2, 2**40)
    assert unpack(pack_end(end), SLOTS) == end


def test_blocks_that_are_not_whole_are_refused(folder: Path) -> None:
    packed = pack_block(block_of(folder))
    for size in range(len(packed)):
        with pytest.raises(ProtocolError):
            unpack(packed[:size], SLOTS)
    with pytest.raises(ProtocolError, match="its columns end at byte"):
        unpack(packed + b"12345678", SLOTS)
    with pytest.raises(ProtocolError, match="4 columns, but this worker has 1 slots"):
        unpack(packed, SLOTS[:1])
    with pytest.raises(ProtocolError, match="values for slot 'ids' with a type that differs"):
        unpack(packed, (SLOTS[2], *SLOTS[1:]))
    with pytest.raises(ProtocolError, match="must start with"):
        unpack(b"?" * 40, SLOTS)


def test_bytes_changed_anywhere_give_records_or_an_error(folder: Path) -> None:
    packed = bytearray(pack_block(block_of(folder)))
    for place in range(len(packed)):
        for value in (0, 1, 255):
            changed = bytes(packed[:place]) + bytes([value]) + bytes(packed[place + 1 :])
            try:
                found = unpack(changed, SLOTS)
            except ProtocolError:
                continue
            if isinstance(found, RecordBlock):
                sizes = {len(v if lengths is None else lengths) for v, lengths in found.columns}
                assert len(sizes) == 1
