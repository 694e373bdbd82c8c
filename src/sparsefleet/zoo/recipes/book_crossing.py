"""Ranking on Book-Crossing: predicts whether a reader rates a book 8 out of 10 or higher."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from sparsefleet.data.features import Categorical, Features
from sparsefleet.zoo.dcn_v2 import DCNv2
from sparsefleet.zoo.deepfm import DeepFM
from sparsefleet.zoo.inputs import Tables
from sparsefleet.zoo.recipes.movielens import auc_of, shuffled_split
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Recipe, Settings

__all__ = ["dcn_v2", "deepfm"]

NAMES = ["user_id", "isbn", "author", "year", "publisher", "location", "state", "country", "age"]
FILE = DataFile(
    path="local_only/book_crossing/interactions.tsv",
    source="Book-Crossing (Ziegler 2005), BX-*.csv joined into one table: rating, "
    f"{', '.join(NAMES)}; research use",
    md5="bc3ebd842cff6d15b5137f7ef9e268b3",
)
FEATURES = Features(
    *(Categorical(name, hash_seed=at, dim=8) for at, name in enumerate(NAMES)), label="liked"
)


def prepare(directory: Path, seed: int) -> Prepared:
    """Read the explicit ratings; 15% of them, the same for all seeds, are for testing."""
    lines = csv.reader(FILE.lines(directory)[1:], delimiter="\t", quoting=csv.QUOTE_NONE)
    rows = [row for row in lines if row[0] != "0"]
    ratings, *ids = zip(*rows, strict=True)
    columns = {name: np.array(column) for name, column in zip(NAMES, ids, strict=True)}
    columns["liked"] = np.array([int(rating) >= 8 for rating in ratings], np.float32)
    chosen = shuffled_split(len(rows), 0.85, seed=0)
    train, test = ({name: column[at] for name, column in columns.items()} for at in chosen)
    del seed
    return Prepared(Part(FEATURES, train), Part(FEATURES, test), lambda p, t: auc_of(p, t["liked"]))


def _recipe(name: str, title: str, model: Callable[[Tables], nn.Module]) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        files=(FILE,),
        protocol="explicit ratings, a random 85% for training; label: 8 points or more; AUC. No "
        "published figure for this label",
        prepare=prepare,
        model=model,
        loss=nn.functional.binary_cross_entropy_with_logits,
        settings=Settings(batch_size=500, epochs=1, table_lr=0.03),
    )


def deepfm() -> Recipe:
    """Return the recipe for DeepFM."""
    return _recipe(
        "books_deepfm",
        "DeepFM on Book-Crossing",
        lambda tables: DeepFM(FEATURES, hidden=(64, 32), tables=tables),
    )


def dcn_v2() -> Recipe:
    """Return the recipe for DCN-V2."""
    return _recipe(
        "books_dcn_v2",
        "DCN-V2 on Book-Crossing",
        lambda tables: DCNv2(FEATURES, cross_layers=2, hidden=(64, 32), tables=tables),
    )
