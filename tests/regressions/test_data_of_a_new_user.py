"""Data that a new user passes by mistake, and the errors that point out the remedy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, optim, zoo
from sparsefleet.data import ReaderConfig, hash_ids
from sparsefleet.data.features import Categorical, Feature, Features, Numeric, Sequence
from sparsefleet.data.interactions import Interactions
from sparsefleet.errors import (
    BadLineError,
    ConfigError,
    DataError,
    InputFileError,
    SchemaError,
)
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


def read(folder: Path, text: str, features: Features, **settings: Any) -> list[Any]:
    (folder / "day.csv").write_text(text)
    format = features.csv(**settings)  # noqa: A001
    return list(features.reader(folder / "day.csv", format, batch_size=8))


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("city;click", "if its columns are separated by ';', pass separator=';'"),
        ("city\tclick", "if its columns are separated by '\\t', pass separator='\\t'"),
        ("City,Click", "did you mean 'City'? Name it with columns='City'"),
        ("Ulm,1", "if the file has no line with column names, list them in header=[...]"),
    ],
)
def test_a_missing_column_of_csv_is_explained(tmp_path: Path, header: str, advice: str) -> None:
    with pytest.raises(SchemaError, match="no column called 'city'") as raised:
        read(tmp_path, f"{header}\nUlm,1\n", FEATURES)
    assert str(raised.value).endswith(advice)


def test_a_misspelt_column_of_parquet_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"City": ["Ulm"], "click": [1.0]})
    pyarrow.parquet.write_table(table, tmp_path / "day.parquet")
    with pytest.raises(SchemaError, match="did you mean 'City'"):
        list(FEATURES.reader(tmp_path / "day.parquet", batch_size=8))


@pytest.mark.parametrize(
    ("feature", "value", "advice"),
    [
        (Categorical("x"), "Ulm", "set hash_seed=... to turn strings into ids"),
        (Categorical("x"), "", "set missing=... to replace missing values"),
        (Sequence("x"), "1|2", "set separator='|' to read several ids"),
        (Numeric("x"), "NA", "list it in missing_texts=[...] and set missing=..."),
        (Numeric("x", missing=0.0), "NA", "list it in missing_texts=[...]; to skip"),
    ],
)
def test_a_bad_value_in_csv_comes_with_the_setting_for_it(
    tmp_path: Path, feature: Feature, value: str, advice: str
) -> None:
    with pytest.raises(BadLineError) as raised:
        read(tmp_path, f"x,y\n{value},1\n", Features(feature, label="y"))
    assert advice in str(raised.value)


def test_a_label_of_words_is_pointed_to_its_setting(tmp_path: Path) -> None:
    with pytest.raises(BadLineError, match=r"found 'yes'; .* set Label\(positive='yes'\); to skip"):
        read(tmp_path, "city,click\nUlm,yes\n", FEATURES)


@pytest.mark.parametrize("empty", [None, math.nan])
def test_missing_ids_in_memory_are_replaced_as_in_a_file(empty: object) -> None:
    features = Features(
        Categorical("number", missing=7),
        Categorical("hashed", hash_seed=1, missing=8),
        Categorical("known", vocabulary=("a",)),
        Sequence("seen", missing=9),
        label="click",
    )
    columns = {
        "number": [1, empty],
        "hashed": ["a", empty],
        "known": ["a", empty],
        "seen": [[1, empty], empty],
        "click": [1.0, 0.0],
    }
    ((inputs, _),) = features.memory(columns, batch_size=2)
    assert inputs["number"].tolist() == [1, 7]
    assert inputs["hashed"].tolist() == [int(hash_ids(["a"], 1)[0]), 8]
    assert inputs["known"].tolist() == [1, 0]
    assert inputs["seen"][0].tolist() == [1, 9, 9]


def test_ids_that_pandas_stores_as_floats_are_read(tmp_path: Path) -> None:
    features = Features(Categorical("number", missing=0))
    (batch,) = features.memory({"number": np.array([3.0, np.nan])}, batch_size=2)
    assert batch["number"].tolist() == [3, 0]
    known = Features(Categorical("known", vocabulary=("a",)))
    (batch,) = known.memory({"known": np.array([np.nan, np.nan])}, batch_size=2)
    assert batch["known"].tolist() == [0, 0]
    with pytest.raises(DataError, match=r"row 1, column 'number': .*found 3\.5"):
        features.memory({"number": np.array([3.5, np.nan])}, batch_size=2)


def test_a_missing_value_in_memory_comes_with_the_setting_for_it() -> None:
    with pytest.raises(DataError, match=r"row 2, .* found None; set missing=\.\.\. to replace"):
        Features(Categorical("number")).memory({"number": [1, None]}, batch_size=2)


@pytest.mark.parametrize("files", [None, [], [{"city": "Ulm", "click": 1}]])
def test_examples_in_memory_are_not_taken_for_files(files: object) -> None:
    with pytest.raises(ConfigError, match=r"pass Features\.memory\(\.\.\.\) a dict of columns"):
        FEATURES.reader(files, batch_size=2)


def test_a_feature_as_wide_as_no_table_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"feature 'city': dim must be an int in 1\.\.4096"):
        Categorical("city", dim=5000)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([1.0, math.nan], [1, 2], [1, 2]), r"users\[1\] is nan, expected a number; leave out"),
        (([1, 2], [1.5, 2.0], [1, 2]), r"items\[0\] is 1\.5, expected an id, a whole number"),
        (([1, 2], [1, 2], [1.5, math.nan]), r"times\[1\] is nan, expected a number; leave out"),
    ],
)
def test_interactions_do_not_turn_other_numbers_into_ids(columns: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Interactions.of(*columns)


def test_whole_floats_are_ids_of_interactions() -> None:
    assert Interactions.of([1.0, 2.0], [3.0, 4.0], [0.5, 1.5]).items.tolist() == [3, 4]


@pytest.mark.parametrize("config", [ReaderConfig, {"drop_last": True}])
def test_a_reader_refuses_what_is_not_its_config(tmp_path: Path, config: Any) -> None:
    (tmp_path / "day.csv").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"config must be a ReaderConfig\(\.\.\.\) or None, got"):
        FEATURES.reader(tmp_path / "day.csv", batch_size=2, config=config)
