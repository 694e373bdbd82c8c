"""DeepFM on samples of three advertising logs: Criteo, Avazu and TalkingData."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from torch import nn

from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.zoo.deepfm import DeepFM
from sparsefleet.zoo.recipes.movielens import auc_of, shuffled_split
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Published, Recipe, Settings

__all__ = ["avazu", "criteo", "talkingdata"]

CRITEO_FILE = DataFile(
    path="local_only/criteo/criteo_raw_6k.tsv",
    source="the first 6,000 lines of train.txt from Kaggle's Criteo Display Advertising Challenge; "
    "not for commercial use",
    md5="9abe4f4ae84711eb8a2f0096bb3a4d66",
)
CRITEO_NUMBERS = tuple(range(1, 14))
CRITEO = Features(
    Numeric("counts", columns=CRITEO_NUMBERS, missing=0.0, transform="log", std=3.0),
    *(Categorical(f"C{at}", columns=13 + at, hash_seed=at, dim=8) for at in range(1, 27)),
    label="click",
)
AVAZU_FILE = DataFile(
    path="local_only/avazu/avazu_raw_7k.csv",
    source=(
        "the first 7,000 lines of train from Kaggle's Avazu Click-Through Rate Prediction; under "
        "the competition's terms"
    ),
    md5="801b62d73505790021ce3c4b5fdd2451",
)
AVAZU_NAMES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
    *("app_category", "device_id", "device_ip", "device_model", "device_type"),
    *("device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
)
AVAZU = Features(
    *(Categorical(name, hash_seed=at, dim=8) for at, name in enumerate(AVAZU_NAMES)),
    label="click",
)
TALKINGDATA_FILE = DataFile(
    path="local_only/talkingdata/talkingdata_75k.csv",
    source=(
        "75,000 lines of train_sample.csv from Kaggle's TalkingData AdTracking Fraud Detection; "
        "under the competition's terms"
    ),
    md5="edf3b8bbf82b57284a4116d555c31bd7",
)
TALKINGDATA_NAMES = ("ip", "app", "device", "os", "channel")
TALKINGDATA = Features(
    *(Categorical(name, dim=8) for name in TALKINGDATA_NAMES),
    Categorical("hour", dim=8),
    label="is_attributed",
)


def _split(
    features: Features, columns: dict[str, np.ndarray], share: float
) -> tuple[Part, Part, np.ndarray]:
    assert features.label is not None
    labels = columns[features.label.name]
    chosen = shuffled_split(len(labels), share, seed=0)  # the same test rows for all seeds
    train, test = ({name: column[at] for name, column in columns.items()} for at in chosen)
    return Part(features, train), Part(features, test), test[features.label.name]


def _prepared(features: Features, columns: dict[str, np.ndarray], share: float) -> Prepared:
    train, test, labels = _split(features, columns, share)
    return Prepared(train, test, lambda predictions, _: auc_of(predictions, labels))


def _criteo(directory: Path, seed: int) -> Prepared:
    rows = list(csv.reader(CRITEO_FILE.lines(directory), delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = {f"C{at}": np.array([row[13 + at] for row in rows]) for at in range(1, 27)}
    columns["counts"] = np.array(
        [[float(row[at] or 0) for at in CRITEO_NUMBERS] for row in rows], np.float32
    )
    columns["click"] = np.array([row[0] for row in rows], np.float32)
    del seed
    return _prepared(CRITEO, columns, 0.7)


def _named(lines: Iterable[str], names: Iterable[str]) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader(lines))
    return {name: np.array([row[name] for row in rows]) for name in names}


def _avazu(directory: Path, seed: int) -> Prepared:
    columns = _named(AVAZU_FILE.lines(directory), (*AVAZU_NAMES, "click"))
    columns["click"] = columns["click"].astype(np.float32)
    del seed
    return _prepared(AVAZU, columns, 0.7)


def _talkingdata(directory: Path, seed: int) -> Prepared:
    names = (*TALKINGDATA_NAMES, "click_time", "is_attributed")
    columns = _named(TALKINGDATA_FILE.lines(directory), names)
    clock = columns.pop("click_time")  # such as 11/7/2017 9:30
    for name in TALKINGDATA_NAMES:
        columns[name] = columns[name].astype(np.int64)
    columns["hour"] = np.array([int(one.split(" ")[1].split(":")[0]) for one in clock])
    columns["is_attributed"] = columns["is_attributed"].astype(np.float32)
    del seed
    return _prepared(TALKINGDATA, columns, 0.5)


def _settings(batch_size: int, table_lr: float) -> Settings:
    """Return settings with small learning rates; with larger ones, a model memorizes the sample."""
    return Settings(
        batch_size=batch_size,
        epochs=3,
        lr=0.001,
        table_lr=table_lr,
        plain_lr=0.05,
        plain_table_lr=0.3,
    )


def _recipe(
    name: str,
    title: str,
    file: DataFile,
    features: Features,
    prepare: Callable[[Path, int], Prepared],
    protocol: str,
    settings: Settings,
    published: tuple[Published, ...] = (),
) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        files=(file,),
        protocol=protocol,
        prepare=prepare,
        model=lambda tables: DeepFM(features, hidden=(64, 32), tables=tables),
        loss=nn.functional.binary_cross_entropy_with_logits,
        settings=settings,
        published=published,
    )


def criteo() -> Recipe:
    """Return the recipe for Criteo's log."""
    return _recipe(
        "criteo_deepfm",
        "DeepFM on a sample of Criteo's log",
        CRITEO_FILE,
        CRITEO,
        _criteo,
        "4,200 random lines of the first 6,000 of the log for training, the others for testing; "
        "AUC",
        _settings(batch_size=100, table_lr=0.003),
        (
            Published(
                metric="auc",
                value=0.8007,
                where="DeepFM, Guo 2017, table 2; trained on 41 million lines of the log",
            ),
        ),
    )


def avazu() -> Recipe:
    """Return the recipe for Avazu's log."""
    return _recipe(
        "avazu_deepfm",
        "DeepFM on a sample of Avazu's log",
        AVAZU_FILE,
        AVAZU,
        _avazu,
        "4,900 random lines of the first 7,000 of the log, all from one hour, for training, the "
        "others for testing; AUC. No published figure for such a small sample",
        _settings(batch_size=100, table_lr=0.005),
    )


def talkingdata() -> Recipe:
    """Return the recipe for TalkingData's log."""
    return _recipe(
        "talkingdata_deepfm",
        "DeepFM on a sample of TalkingData's log",
        TALKINGDATA_FILE,
        TALKINGDATA,
        _talkingdata,
        "a random half of 75,000 clicks for training, the others for testing; 178 of all clicks "
        "led to a download; AUC. No published figure for such a small sample",
        _settings(batch_size=200, table_lr=0.02),
    )
