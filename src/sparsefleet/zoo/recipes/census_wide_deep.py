"""Wide & Deep on Census Income (Adult): predicts who earns more than 50,000 dollars."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from torch import nn

from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.zoo.recipes.movielens import auc_of, shuffled_split
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Published, Recipe, Settings
from sparsefleet.zoo.wide_deep import WideDeep

__all__ = ["recipe"]

NUMBERS = {  # mean and standard deviation of each, after a logarithm for gains and losses
    "age": (38.6, 13.6),
    "education_num": (10.1, 2.6),
    "capital_gain": (0.73, 2.45),
    "capital_loss": (0.36, 1.58),
    "hours_per_week": (40.4, 12.3),
}
NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]
CATEGORIES = [name for name in NAMES if name not in (*NUMBERS, "fnlwgt", "income")]
FILE = DataFile(
    path="adult/adult.data",
    source="https://archive.ics.uci.edu/dataset/2/adult (adult.data; CC BY 4.0)",
    md5="3b47a7aa751a9626f7123f62764797f4",
)
FEATURES = Features(
    *(
        Numeric(
            name,
            mean=mean,
            std=std,
            transform="log" if name.startswith("capital") else "none",
        )
        for name, (mean, std) in NUMBERS.items()
    ),
    *(Categorical(name, hash_seed=0, dim=8) for name in CATEGORIES),
    Categorical("age_group", dim=8),
    Categorical("education_occupation", hash_seed=0, dim=8),
    label="income",
)


def prepare(directory: Path, seed: int) -> Prepared:
    """Read the file; add the wide part's age groups and its cross of education and occupation."""
    rows = [row for row in csv.reader(FILE.lines(directory), skipinitialspace=True) if row]
    columns: dict[str, np.ndarray] = {
        name: np.array([row[at] for row in rows]) for at, name in enumerate(NAMES)
    }
    for name in NUMBERS:
        columns[name] = columns[name].astype(np.float32)
    columns["age_group"] = np.digitize(columns["age"], [18, 25, 30, 35, 40, 45, 50, 55, 60, 65])
    pairs = zip(columns["education"], columns["occupation"], strict=True)
    columns["education_occupation"] = np.array(["/".join(pair) for pair in pairs])
    columns["income"] = (columns["income"] == ">50K").astype(np.float32)
    chosen = shuffled_split(len(rows), 0.8, seed=0)  # the same test rows for all seeds
    train, test = ({name: column[at] for name, column in columns.items()} for at in chosen)
    del seed
    return Prepared(
        Part(FEATURES, train), Part(FEATURES, test), lambda p, t: auc_of(p, t["income"])
    )


def recipe() -> Recipe:
    """Return the recipe."""
    return Recipe(
        name="census_wide_deep",
        title="Wide & Deep on Census Income",
        files=(FILE,),
        protocol=(
            "26,048 of the 32,561 rows of adult.data for training, the other 6,513 for testing; AUC"
        ),
        prepare=prepare,
        model=lambda tables: WideDeep(FEATURES, hidden=(75, 50, 25), tables=tables),
        loss=nn.functional.binary_cross_entropy_with_logits,
        settings=Settings(batch_size=100, epochs=6, lr=0.001, table_lr=0.05),
        published=(
            Published(
                metric="auc",
                value=0.9058,
                where="PaddleRec, Wide & Deep, Census Income; tested on UCI's adult.test",
            ),
        ),
    )
