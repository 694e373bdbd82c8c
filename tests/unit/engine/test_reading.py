"""The training summary shows what the reader did, and whether training waited for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.train.click_model import Clicks, clicks, trainer_of

from sparsefleet.data import MemoryData, MultiSlot, Reader, ReaderConfig, ReaderStats, Slot
from sparsefleet.engine.clock import (
    ReadingWatch,
    TimeShares,
    advise,
    advise_reading,
    describe_reading,
)
from sparsefleet.train import TrainerConfig
from sparsefleet.train.history import Epoch, History, summary_lines

FORMAT = MultiSlot(Slot("ids", "uint64", (3,)), Slot("click", "float", ()))


class CountedBatches:
    """Batches in memory that report having been read."""

    def __init__(self, counts: ReaderStats) -> None:
        self._counts = counts

    def stats(self) -> ReaderStats:
        return self._counts

    def __iter__(self) -> Iterator[Any]:
        return iter(clicks(2))


@pytest.fixture
def click_file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = [
        f"3 {' '.join(map(str, rng.integers(0, 40, 3)))} 1 {rng.integers(0, 2)}\n"
        for _ in range(200)
    ]
    path = tmp_path / "part-0"
    path.write_text("".join([*lines, "3 1 2 1 0\n", "garbage\n"]))
    return path


def reader_of(path: Path) -> Reader:
    config = ReaderConfig(max_bad_lines=2)
    return Reader(path, FORMAT, 20, label="click", config=config)


def test_each_epoch_has_what_was_read_for_it(click_file: Path) -> None:
    reader = reader_of(click_file)
    list(reader)  # an earlier pass does not count
    with trainer_of(Clicks()) as trainer:
        history = trainer.fit(reader, epochs=2, validation=reader)
    for epoch in history.epochs:
        assert epoch.reading is not None
        assert (epoch.reading.lines, epoch.reading.records, epoch.reading.bad_lines) == (
            202,
            200,
            2,
        )
        assert epoch.reading.bytes == click_file.stat().st_size
    assert history.reading is not None
    assert (history.reading.lines, history.reading.files, history.reading.threads) == (404, 2, 1)


def test_progress_and_summary_show_lines_and_bad_lines(
    click_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trainer_of(Clicks(), config=TrainerConfig()) as trainer:
        trainer.fit(reader_of(click_file))
    shown = capsys.readouterr().out
    assert "  2 bad lines\n" in shown
    assert "read 202 lines, 0.0 MB (" in shown
    assert "2 bad lines were skipped\n" in shown


def test_data_in_memory_counts_what_it_gives(click_file: Path) -> None:
    data = MemoryData(reader_of(click_file))
    assert data.stats().lines == 202
    with trainer_of(Clicks()) as trainer:
        history = trainer.fit(data, epochs=2)
    assert history.reading == ReaderStats(records=400, batches=20)
    assert "took 400 records from memory" in summary_lines(history)


def test_data_without_counts_has_none() -> None:
    class OtherStats(list[Any]):
        def stats(self, of: str) -> str:
            return of

    for data in (clicks(2), OtherStats(clicks(2)), lambda: iter(clicks(2))):
        assert ReadingWatch(data).so_far() is None
        with trainer_of(Clicks()) as trainer:
            history = trainer.fit(data)
        assert history.reading is None


def test_anything_that_counts_is_asked() -> None:
    with trainer_of(Clicks()) as trainer:
        history = trainer.fit(CountedBatches(ReaderStats(lines=7, threads=3)))
    assert history.reading == ReaderStats(threads=3)


@pytest.mark.parametrize(
    ("reading", "wanted"),
    [
        (
            ReaderStats(lines=9, threads=1, consumers_blocked_s=4.0),
            "the reading thread; use more",
        ),
        (
            ReaderStats(lines=9, threads=2, consumers_blocked_s=4.0),
            "the 2 reading threads; use more",
        ),
        (
            ReaderStats(records=9, threads=1, consumers_blocked_s=4.0),
            "code that makes batches",
        ),
        (ReaderStats(threads=2, producers_blocked_s=4.0), "read in time, but taking them"),
        (ReaderStats(records=10), "the data is in memory, but"),
        (None, "a DataLoader with workers"),
    ],
)
def test_advice_goes_by_who_waited(reading: ReaderStats | None, wanted: str) -> None:
    told = advise(TimeShares(data=4.0, compute=5.0), reading)
    assert told.startswith("44% data: ")
    assert wanted in told


def test_reading_is_not_blamed_when_computing_takes_the_time() -> None:
    told = advise(TimeShares(data=1.0, compute=9.0), ReaderStats(threads=1))
    assert told.startswith("90% compute: computing is the bottleneck")


def test_rows_are_called_records_and_one_is_one() -> None:
    told = describe_reading(ReaderStats(records=10, bad_lines=1, threads=2), 5.0)
    assert told.startswith("read 10 records, 0.0 MB (2 records per second) with 2 threads; ")
    assert told.endswith("; 1 bad line was skipped")
    assert describe_reading(ReaderStats(), 1.0) == "took 0 records"
    assert advise_reading(ReaderStats(threads=1))


def test_summary_has_a_line_for_reading_only_where_there_is_one() -> None:
    epoch = Epoch(number=1, examples=1, steps=1, skipped=0, seconds=1.0, loss=0.5, metrics={})
    assert len(summary_lines(History(epochs=[epoch]))) == 2
