"""Ranking on MovieLens 100K: predicts whether a user rates a movie 4 or higher."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from sparsefleet.data.features import Categorical, Features, MultiValued
from sparsefleet.zoo.dcn_v2 import DCNv2
from sparsefleet.zoo.deepfm import DeepFM
from sparsefleet.zoo.inputs import Tables
from sparsefleet.zoo.recipes.movielens import auc_of, shuffled_split
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Recipe, Settings

__all__ = ["dcn_v2", "deepfm"]

DIM = 16
_SOURCE = (
    "https://grouplens.org/datasets/movielens/100k/ as the tab-separated files of RecBole's "
    "package (PyPI recbole 1.2.1)"
)
INTERACTIONS, USERS, ITEMS = (
    DataFile(path=f"local_only/movielens_100k/ml-100k.{name}", source=_SOURCE, md5=md5)
    for name, md5 in (
        ("inter", "a8a8c3f165aedc53f63b5dc0a0463b14"),
        ("user", "ac50ecbab626dbefa83288a3593f92ab"),
        ("item", "fb748e97e64d9a35421d06d7083d0959"),
    )
)
FEATURES = Features(
    Categorical("user", dim=DIM),
    Categorical("movie", dim=DIM),
    Categorical("age", dim=DIM),
    Categorical("gender", vocabulary=("F", "M"), dim=DIM),
    Categorical("occupation", hash_seed=1, dim=DIM),
    Categorical("year", hash_seed=2, dim=DIM),
    MultiValued("genres", hash_seed=3, dim=DIM),
    label="liked",
)


def _rows(file: DataFile, directory: Path) -> list[list[str]]:
    return list(csv.reader(file.lines(directory), delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def prepare(directory: Path, seed: int) -> Prepared:
    """Split ratings randomly 90 to 10, in the same way for all seeds."""
    ratings = np.array(_rows(INTERACTIONS, directory), np.float64)
    users = {int(row[0]): row for row in _rows(USERS, directory)}
    movies = {int(row[0]): row for row in _rows(ITEMS, directory)}
    parts = []
    for chosen in shuffled_split(len(ratings), 0.9, seed=0):
        user, movie = (ratings[chosen, at].astype(np.int64) for at in (0, 1))
        columns = {
            "user": user,
            "movie": movie,
            "age": np.array([int(users[one][1]) // 5 for one in user]),
            "gender": np.array([users[one][2] for one in user]),
            "occupation": np.array([users[one][3] for one in user]),
            "year": np.array([movies[one][2] for one in movie]),
            "genres": [movies[one][3].split() for one in movie],
            "liked": (ratings[chosen, 2] >= 4).astype(np.float32),
        }
        parts.append(Part(FEATURES, columns))
    del seed
    return Prepared(parts[0], parts[1], lambda p, t: auc_of(p, t["liked"]))


def _recipe(name: str, title: str, model: Callable[[Tables], nn.Module]) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        files=(INTERACTIONS, USERS, ITEMS),
        protocol="a random 90% of ratings for training; label: 4 stars or more; AUC. No published "
        "figure for this label",
        prepare=prepare,
        model=model,
        loss=nn.functional.binary_cross_entropy_with_logits,
        settings=Settings(batch_size=200, epochs=2, table_lr=0.03),
    )


def deepfm() -> Recipe:
    """Return the recipe for DeepFM."""
    return _recipe(
        "movielens_100k_deepfm",
        "DeepFM on MovieLens 100K",
        lambda tables: DeepFM(FEATURES, hidden=(64, 32), tables=tables),
    )


def dcn_v2() -> Recipe:
    """Return the recipe for DCN-V2."""
    return _recipe(
        "movielens_100k_dcn_v2",
        "DCN-V2 on MovieLens 100K",
        lambda tables: DCNv2(FEATURES, cross_layers=2, hidden=(64, 32), tables=tables),
    )
