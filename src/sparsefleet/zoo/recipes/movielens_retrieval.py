"""Two towers on MovieLens latest-small: predict which movies a user likes next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric, Sequence
from sparsefleet.zoo.recipes.movielens import FILES, hits_of, read_ratings
from sparsefleet.zoo.recipes.recipe import Part, Prepared, Recipe, Settings
from sparsefleet.zoo.two_tower import InBatchSoftmax, TwoTower

__all__ = ["recipe"]

DIM = 32
NUM_NEGATIVES = 100
FEATURES = Features(
    Sequence("seen", table="movie", dim=DIM, max_length=50),
    Categorical("movie", dim=DIM),
    MultiValued("genres", hash_seed=0, dim=DIM),
    Numeric("log_share"),
    label="weight",
)


def prepare(directory: Path, seed: int) -> Prepared:
    """Train on all but each user's last like; rank the last like among 100 other movies."""
    data = read_ratings(directory)
    events = data.events.take(data.ratings >= 4).with_enough(per_user=5)
    values, offsets = events.histories(50)
    lists = np.array(
        [values[offsets[at] : offsets[at + 1]] for at in range(len(events))], dtype=object
    )
    places = np.arange(len(events))
    is_last = np.append(events.users[1:] != events.users[:-1], True)
    counts = dict(zip(*np.unique(events.items, return_counts=True), strict=True))

    def columns(rows: NDArray[np.int64], movies: NDArray[np.int64]) -> dict[str, object]:
        share = np.array([counts[movie] for movie in movies]) / len(events)
        return {
            "seen": list(lists[rows]),
            "movie": movies,
            "genres": data.genres_of(movies),
            "log_share": np.log(share).astype(np.float32),
            "weight": np.ones(len(rows), np.float32),
        }

    rows = places[~is_last & (np.diff(offsets) > 0)]
    last = events.take(is_last)
    others = last.negatives(NUM_NEGATIVES, seed=0, known=events)
    candidates = np.concatenate([last.items[:, None], others], axis=1).reshape(-1)
    tested = np.repeat(places[is_last], NUM_NEGATIVES + 1)
    del seed
    return Prepared(
        Part(FEATURES, columns(rows, events.items[rows])),
        Part(FEATURES, columns(tested, candidates)),
        lambda scores, _: hits_of(scores.reshape(-1, NUM_NEGATIVES + 1), 10),
    )


def recipe() -> Recipe:
    """Return the recipe."""
    return Recipe(
        name="movielens_two_tower",
        title="Two towers on MovieLens latest-small",
        files=FILES,
        protocol=(
            "likes (4 stars or more) of users with 5 or more; each user's last like ranked among "
            "100 movies the user has not liked; recall (hit rate) and NDCG at 10, AUC. No "
            "published figure"
        ),
        prepare=prepare,
        model=lambda tables: TwoTower(
            FEATURES,
            user=["seen"],
            item=["movie", "genres"],
            item_id="movie",
            log_frequency="log_share",
            hidden=(64,),
            dim=DIM,
            tables=tables,
        ),
        loss=InBatchSoftmax(0.1),
        settings=Settings(batch_size=256, epochs=5, table_lr=0.05),
    )
