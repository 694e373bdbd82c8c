"""Ranking on MovieLens latest-small: predicts whether a user rates a movie 4 or higher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from sparsefleet.data.features import Categorical, Features, MultiValued, Sequence
from sparsefleet.zoo.dcn_v2 import DCNv2
from sparsefleet.zoo.deepfm import DeepFM
from sparsefleet.zoo.din import DIN
from sparsefleet.zoo.inputs import Tables
from sparsefleet.zoo.recipes.movielens import FILES, auc_of, read_ratings, shuffled_split
from sparsefleet.zoo.recipes.recipe import Part, Prepared, Recipe, Settings

__all__ = ["dcn_v2", "deepfm", "din"]

DIM = 16
FEATURES = Features(
    Categorical("user", dim=DIM),
    Categorical("movie", dim=DIM),
    MultiValued("genres", hash_seed=0, dim=DIM),
    label="liked",
)
WITH_HISTORY = Features(
    *FEATURES, Sequence("seen", table="movie", dim=DIM, max_length=50), label="liked"
)


def prepare(directory: Path, seed: int) -> Prepared:
    """Split ratings randomly 90 to 10, in the same way for all seeds."""
    data = read_ratings(directory)
    parts = []
    for rows in shuffled_split(len(data.events), 0.9, seed=0):
        events = data.events.take(rows)
        columns = {
            "user": events.users,
            "movie": events.items,
            "genres": data.genres_of(events.items),
            "liked": (data.ratings[rows] >= 4).astype(np.float32),
        }
        parts.append(Part(FEATURES, columns))
    del seed
    return Prepared(parts[0], parts[1], lambda p, t: auc_of(p, t["liked"]))


def prepare_history(directory: Path, seed: int) -> Prepared:
    """Split by time, 80 to 20; the history holds the items that the user had already liked."""
    data = read_ratings(directory)
    liked = data.ratings >= 4
    events = data.events
    values, offsets = _liked_before(events.users, events.items, liked, 50)
    lists = [values[offsets[at] : offsets[at + 1]] for at in range(len(events))]
    border = np.sort(events.times)[int(len(events) * 0.8)]
    parts = []
    for mask in (events.times < border, events.times >= border):
        rows = np.flatnonzero(mask)
        columns = {
            "user": events.users[rows],
            "movie": events.items[rows],
            "genres": data.genres_of(events.items[rows]),
            "seen": [lists[at] for at in rows],
            "liked": liked[rows].astype(np.float32),
        }
        parts.append(Part(WITH_HISTORY, columns))
    del seed
    return Prepared(parts[0], parts[1], lambda p, t: auc_of(p, t["liked"]))


def _liked_before(
    users: np.ndarray, items: np.ndarray, liked: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each row, the last items its user had liked by then, as values and offsets."""
    values: list[int] = []
    offsets = [0]
    before: list[int] = []
    for at in range(len(users)):
        if at and users[at] != users[at - 1]:
            before = []
        values += before[-most:]
        offsets.append(len(values))
        if liked[at]:
            before.append(int(items[at]))
    return np.array(values, np.int64), np.array(offsets)


def _recipe(
    name: str,
    title: str,
    model: Callable[[Tables], nn.Module],
    settings: Settings,
    prepare_data: Callable[[Path, int], Prepared] = prepare,
) -> Recipe:
    by_time = "the earliest 80% of ratings for training, the rest for testing"
    return Recipe(
        name=name,
        title=title,
        files=FILES,
        protocol=("a random 90% of ratings for training" if prepare_data is prepare else by_time)
        + "; label: 4 stars or more; AUC. No published figure for this data",
        prepare=prepare_data,
        model=model,
        loss=nn.functional.binary_cross_entropy_with_logits,
        settings=settings,
    )


def deepfm() -> Recipe:
    """Return the recipe for DeepFM."""
    return _recipe(
        "movielens_deepfm",
        "DeepFM on MovieLens latest-small",
        lambda tables: DeepFM(FEATURES, hidden=(64, 32), tables=tables),
        Settings(batch_size=200, epochs=3, table_lr=0.03),
    )


def dcn_v2() -> Recipe:
    """Return the recipe for DCN-V2."""
    return _recipe(
        "movielens_dcn_v2",
        "DCN-V2 on MovieLens latest-small",
        lambda tables: DCNv2(FEATURES, cross_layers=2, hidden=(64, 32), tables=tables),
        Settings(batch_size=200, epochs=3, table_lr=0.03),
    )


def din() -> Recipe:
    """Return the recipe for DIN."""
    return _recipe(
        "movielens_din",
        "DIN on MovieLens latest-small",
        lambda tables: DIN(
            WITH_HISTORY, history="seen", candidate="movie", hidden=(64, 32), tables=tables
        ),
        Settings(batch_size=200, epochs=2, table_lr=0.03),
        prepare_history,
    )
