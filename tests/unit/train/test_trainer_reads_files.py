"""A Trainer fed from files learns what it learns from the same batches in memory."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.unit.train.click_model import trainer_of
from torch import Tensor, nn

from sparsefleet.data import (
    CriteoTsv,
    MultiSlot,
    Parquet,
    Reader,
    ReaderConfig,
    Records,
    Slot,
)
from sparsefleet.errors import BadLineError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.train import TrainerConfig

FORMAT = MultiSlot(
    Slot("click", "float", ()), Slot("ads"), Slot("dense", "float", (2,)), Slot("site")
)


class Clicks(nn.Module):
    """Ragged ads and sites, dense float32[B, 2] -> logits float32[B]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbeddingBag("ads", 4)
        self.site = SparseEmbeddingBag("site", 4, mode="sum")
        self.head = nn.Linear(10, 1)

    def forward(
        self, ads: tuple[Tensor, Tensor], dense: Tensor, site: tuple[Tensor, Tensor]
    ) -> Tensor:
        parts = [self.ads(ads), self.site(*site), dense]
        return self.head(torch.cat(parts, 1)).squeeze(1)


@pytest.fixture
def click_files(tmp_path: Path) -> Path:
    """Four files in which small ids are clicked."""
    rng = random.Random(5)
    for index in range(4):
        lines = []
        for _ in range(250):
            ads = [rng.randrange(40) for _ in range(rng.randint(1, 5))]
            click = int(sum(ads) / len(ads) < 20)
            site = rng.choice([2**64 - 1, 7])  # ids use all 64 bits
            numbers = f"{rng.random():.6f} {rng.random():.6f}"
            ids = " ".join(map(str, ads))
            lines.append(f"1 {click} {len(ads)} {ids} 2 {numbers} 1 {site}\n")
        (tmp_path / f"part-{index}").write_text("".join(lines))
    return tmp_path / "part-*"


def test_training_from_files_is_training_from_memory(click_files: Path) -> None:
    reader = Reader(click_files, FORMAT, 32, label="click")
    in_memory = list(reader)
    losses = []
    for data in (reader, in_memory):
        with trainer_of(Clicks()) as trainer:
            history = trainer.fit(data, epochs=2)
            losses.append([epoch.loss for epoch in history.epochs])
            assert history.examples == 2000
    assert losses[0] == losses[1]


def test_the_same_records_in_any_format_train_the_same(click_files: Path, tmp_path: Path) -> None:
    reader = Reader(click_files, FORMAT, 32, label="click")
    table = as_table(reader)
    pyarrow.parquet.write_table(table, tmp_path / "clicks.parquet", row_group_size=300)
    slots = FORMAT.columns
    others = [
        Reader(tmp_path / "clicks.parquet", Parquet(*slots), 32, label="click"),
        Reader(None, Records(table.to_pylist, *slots), 32, label="click"),
    ]
    losses = []
    for data in (reader, *others):
        with trainer_of(Clicks()) as trainer:
            losses.append([epoch.loss for epoch in trainer.fit(data, epochs=2).epochs])
    assert losses[0] == losses[1] == losses[2]


def as_table(reader: Reader) -> pyarrow.Table:
    """All records of a reader, as Arrow has them."""
    batches = []
    with reader.begin_columns() as taken:
        for columns in taken:
            arrays = {}
            for slot, (values, offsets) in zip(reader.columns, columns, strict=True):
                array = pyarrow.array(values.reshape(-1))
                if slot.shape != ():
                    borders = offsets
                    if borders is None:
                        borders = np.arange(len(values) + 1) * slot.width
                    array = pyarrow.LargeListArray.from_arrays(pyarrow.array(borders), array)
                arrays[slot.name] = array
            batches.append(pyarrow.table(arrays))
    return pyarrow.concat_tables(batches)


@pytest.mark.parametrize("layout", ["dict", "tuple"])
def test_many_threads_learn_from_files_read_by_many(click_files: Path, layout: str) -> None:
    config = ReaderConfig(layout=layout, queue_batches=2)  # type: ignore[arg-type]
    reader = Reader(click_files, FORMAT, 50, label="click", threads=2, config=config)
    with trainer_of(Clicks(), threads=2) as trainer:
        history = trainer.fit(reader, epochs=5, validation=reader)
        assert history.examples == 5000
        assert history.last.validation["auc"] > 0.8
        assert len(trainer.predict(reader)) == 1000


def test_a_bad_line_stops_training_with_its_place(click_files: Path) -> None:
    (click_files.parent / "part-3").write_text("1 1 1 5 2 0 0 1\n")
    reader = Reader(click_files, FORMAT, 32, label="click")
    with trainer_of(Clicks()) as trainer, pytest.raises(BadLineError, match="part-3, line 1"):
        trainer.fit(reader)


class CriteoModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding("categories", 4)
        self.head = nn.Linear(26 * 4 + 13, 1)

    def forward(self, counts: Tensor, categories: Tensor) -> Tensor:
        return self.head(torch.cat([self.rows(categories).flatten(1), counts], 1)).squeeze(1)


def test_criteo_logs_are_learned_from(tmp_path: Path) -> None:
    rng = random.Random(6)
    lines = []
    for _ in range(600):
        click = rng.randrange(2)
        counts = [str(rng.randrange(100)) if rng.random() < 0.8 else "" for _ in range(13)]
        texts = [f"{rng.randrange(20) + 20 * click:08x}", *[f"{rng.randrange(9):08x}"] * 25]
        lines.append("\t".join([str(click), *counts, *texts]))
    (tmp_path / "day_0").write_text("\n".join(lines))
    reader = Reader(tmp_path / "day_0", CriteoTsv(), 50, label="label")
    with trainer_of(CriteoModel()) as trainer:
        trainer.fit(reader, epochs=4)
        assert trainer.evaluate(reader)["auc"] > 0.9


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_training_that_fails_leaves_no_reading_threads(click_files: Path, prefetch: bool) -> None:
    def fails(output: Tensor, clicks: Tensor) -> Tensor:
        raise ArithmeticError

    reader = Reader(click_files, FORMAT, 10, label="click", threads=2)
    trainer = trainer_of(Clicks(), fails, TrainerConfig(quiet=True, prefetch=prefetch))
    with pytest.raises(ArithmeticError):
        trainer.fit(reader)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("sparsefleet-read")]
    trainer.close()
