"""MovieLens latest-small for the recipes: ratings as interactions, and genres of movies.

In shapes, N is the number of examples and C the number of candidates.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.interactions import Interactions
from sparsefleet.metrics import AUC
from sparsefleet.zoo.recipes.recipe import DataFile

__all__ = ["FILES", "Ratings", "auc_of", "hits_of", "read_ratings", "shuffled_split"]

_SOURCE = "https://grouplens.org/datasets/movielens/latest/ (ml-latest-small)"
FILES = (
    DataFile(
        path="movielens_latest_small/ratings.csv",
        source=_SOURCE,
        md5="ac0cf1d26aed3a5b6777a295231976ad",
    ),
    DataFile(
        path="movielens_latest_small/movies.csv",
        source=_SOURCE,
        md5="b252328d16b085936b56eefad880ef9d",
    ),
)


class Ratings:
    """All ratings, ordered by user and time, with the genres of their movies."""

    def __init__(self, events: Interactions, ratings: NDArray[Any], genres: dict[int, list[str]]):
        self.events = events
        self.ratings = ratings[events.rows]
        """The ratings, float32[N], from 0.5 to 5."""
        self.genres = genres
        """The genres of each movie."""

    def genres_of(self, movies: NDArray[np.int64]) -> list[list[str]]:
        """Return the genres of each movie."""
        return [self.genres.get(int(movie), []) for movie in movies]


def read_ratings(directory: Path) -> Ratings:
    """Read the ratings and the movies."""
    ratings, movies = (list(csv.reader(file.lines(directory)))[1:] for file in FILES)
    rows = np.array([list(map(float, row)) for row in ratings])
    genres = {int(row[0]): row[2].split("|") for row in movies}
    events = Interactions.of(rows[:, 0], rows[:, 1], rows[:, 3])
    return Ratings(events, rows[:, 2].astype(np.float32), genres)


def shuffled_split(size: int, share: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the indices of the rows for training and of those for testing, chosen at random."""
    order = np.random.default_rng(seed).permutation(size)
    border = int(size * share)
    return np.sort(order[:border]), np.sort(order[border:])


def auc_of(predictions: NDArray[np.float32], labels: Any) -> dict[str, float]:
    """Return the AUC over all examples."""
    metric = AUC()
    metric.update(predictions, np.asarray(labels))
    return {"auc": metric.compute()}


def hits_of(scores: NDArray[np.float32], k: int) -> dict[str, float]:
    """Return the hit rate and NDCG at k and the AUC. scores: float[N, C], correct item first.

    The AUC is the mean share of the other items that are ranked below the correct one. It varies
    far less between trainings than a hit rate.

    >>> hits_of(np.array([[0.5, 0.9, 0.1], [0.9, 0.1, 0.2]]), 1)
    {'hit_rate@1': 0.5, 'ndcg@1': 0.5, 'auc': 0.75}
    """
    rank = (scores[:, 1:] >= scores[:, :1]).sum(axis=1)  # ties count against us
    hit = rank < k
    gains = np.where(hit, 1 / np.log2(rank + 2), 0.0)
    return {
        f"hit_rate@{k}": float(hit.mean()),
        f"ndcg@{k}": float(gains.mean()),
        "auc": float(1 - rank.mean() / (scores.shape[1] - 1)),
    }
