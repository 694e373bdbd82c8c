"""Data that a new user passes by mistake, and the errors that point out the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, optim, zoo
from sparsefleet.data import ReaderConfig
from sparsefleet.data.features import Categorical, Features
from sparsefleet.errors import BadLineError, ConfigError, InputFileError
from sparsefleet.nn import SparseEmbeddingBag

FEATURES = Features(Categorical("city", hash_seed=1), label="click")
GOOD = "city,click\nUlm,1\nBonn,0\n"


def clicks() -> Trainer:
    model = zoo.CtrDnn(FEATURES, hidden=(4,))
    config = TrainerConfig(quiet=True)
    return Trainer(model, nn.BCEWithLogitsLoss(), optim.Adam(lr=0.1), config=config)


def test_a_last_batch_of_one_example_is_blamed_for_batch_norm() -> None:
    model = nn.Sequential(
        SparseEmbeddingBag("ads", 4), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Flatten(0)
    )
    batches = [(torch.arange(2 * size).view(size, 2), torch.ones(size)) for size in (4, 1)]
    config = TrainerConfig(quiet=True)
    with (
        Trainer(model, nn.BCEWithLogitsLoss(), optim.Adam(lr=0.1), config=config) as trainer,
        pytest.raises(ValueError, match="more than 1 value per channel") as raised,
    ):
        trainer.fit(batches)
    notes = " ".join(raised.value.__notes__)
    assert "the batch has one example" in notes
    assert "ReaderConfig(drop_last=True)" in notes


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", InputFileError, "no records in 1 file"),
        ("city,click\n", InputFileError, "no records in 1 file"),
        ("city,click\nUlm,yes\n", BadLineError, "found 'yes'"),
    ],
)
def test_validation_that_cannot_be_read_is_reported_before_training(
    tmp_path: Path, text: str, kind: type[Exception], message: str
) -> None:
    (tmp_path / "day.csv").write_text(GOOD)
    (tmp_path / "held_out.csv").write_text(text)
    train = FEATURES.reader(tmp_path / "day.csv", batch_size=2)
    held_out = FEATURES.reader(tmp_path / "held_out.csv", batch_size=2)
    with clicks() as trainer:
        with pytest.raises(kind, match=message) as raised:
            trainer.fit(train, validation=held_out)
        assert trainer.epochs_done == 0
        assert train.stats().records == 0
    assert "raised in validation" in " ".join(raised.value.__notes__)


def test_validation_without_batches_is_reported_before_training(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text(GOOD)
    train = FEATURES.reader(tmp_path / "day.csv", batch_size=2)
    with clicks() as trainer:
        with pytest.raises(ConfigError, match="validation has no batches"):
            trainer.fit(train, validation=[])
        assert train.stats().records == 0


def test_checking_validation_leaves_its_reader_unchanged(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text(GOOD)
    config = ReaderConfig(max_bad_lines=1, quarantine=tmp_path / "bad.tsv")
    seen: list[int] = []

    def counted(batch: tuple[object, torch.Tensor]) -> tuple[object, torch.Tensor]:
        seen.append(len(batch[1]))
        return batch

    held_out = FEATURES.reader(tmp_path / "day.csv", batch_size=1, config=config).map(counted)
    held_out.require_records()
    assert seen == []
    assert held_out.stats().records == 0
    assert not (tmp_path / "bad.tsv").exists()
    assert len(list(held_out)) == 2
