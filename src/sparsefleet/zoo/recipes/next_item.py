"""SASRec: ranks the last item of each user among 100 items the user has not seen.

In shapes, U is the number of users and C the number of candidates.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsefleet.data import hash_ids
from sparsefleet.data.features import Categorical, Features, Label, Sequence
from sparsefleet.data.interactions import Interactions
from sparsefleet.errors import InputFileError
from sparsefleet.zoo.recipes.movielens import FILES, hits_of, read_ratings
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Published, Recipe, Settings
from sparsefleet.zoo.sasrec import NextItemLoss, SASRec

__all__ = ["games", "movielens"]

DIM = 50
LENGTH = 50
NUM_NEGATIVES = 100
SEEN = Sequence("seen", table="item", dim=DIM, max_length=LENGTH)
CANDIDATES = Categorical(
    "item", dim=DIM, columns=tuple(f"item_{at}" for at in range(NUM_NEGATIVES + 1))
)
TRAIN = Features(
    SEEN,
    Sequence("next", table="item", dim=DIM, max_length=LENGTH),
    Sequence("unseen", table="item", dim=DIM, max_length=LENGTH),
    label="weight",
)
TEST = Features(SEEN, CANDIDATES, label=Label("is_next", columns=CANDIDATES.columns))
MODEL = Features(*TRAIN, CANDIDATES)
GAMES = Published(
    metric="hit_rate@10",
    value=0.7410,
    where="SASRec paper, Amazon Games (31,013 users, 23,715 items), same protocol",
)
GAMES_NDCG = Published(
    metric="ndcg@10", value=0.5360, where="SASRec paper, Amazon Games, same protocol"
)
PROTOCOL = (
    "users with 5 or more items; each user's last item is ranked among 100 random items the user "
    "has not seen; hit rate and NDCG at 10, AUC"
)


def prepare(events: Interactions, seed: int) -> Prepared:
    """Return one example per user: a history, with the next item and a negative for each item."""
    events = events.with_enough(per_user=5)
    rest, last = events.leave_last_out()
    refused = rest.negatives(1, seed=seed, known=events)[:, 0]
    starts = np.flatnonzero(np.concatenate(([True], rest.users[1:] != rest.users[:-1])))
    ends = np.append(starts[1:], len(rest))
    spans = [(max(begin, end - 1 - LENGTH), end) for begin, end in zip(starts, ends, strict=True)]
    train = {
        "seen": [rest.items[begin : end - 1] for begin, end in spans],
        "next": [rest.items[begin + 1 : end] for begin, end in spans],
        "unseen": [refused[begin + 1 : end] for begin, end in spans],
        "weight": np.ones(len(spans), np.float32),
    }
    others = last.negatives(NUM_NEGATIVES, seed=0, known=events)  # the same for all seeds
    is_next = np.zeros((len(last), NUM_NEGATIVES + 1), np.float32)
    is_next[:, 0] = 1
    test = {
        "seen": [
            rest.items[max(begin, end - LENGTH) : end]
            for begin, end in zip(starts, ends, strict=True)
        ],
        "item": np.concatenate([last.items[:, None], others], axis=1),
        "is_next": is_next,
    }
    return Prepared(Part(TRAIN, train), Part(TEST, test), lambda scores, _: hits_of(scores, 10))


def read_games(directory: Path) -> Interactions:
    """Read lines of user, item, rating and time."""
    rows = list(csv.reader(GAMES_FILE.lines(directory)))
    for number, row in enumerate(rows, 1):
        if len(row) != 4 or not row[3].isdigit():
            raise InputFileError(
                f"{directory / GAMES_FILE.path}, line {number}: expected a user, an item, a rating "
                f"and a time in seconds, found {','.join(row)!r:.80}"
            )
    users, items, _, times = zip(*rows, strict=True)
    return Interactions.of(hash_ids(users), hash_ids(items), np.array(times, np.float64))


GAMES_FILE = DataFile(
    path="amazon/ratings_Video_Games.csv",
    source="http://jmcauley.ucsd.edu/data/amazon/ (ratings only, Video Games)",
    md5=None,
)


def _recipe(
    name: str,
    title: str,
    files: tuple[DataFile, ...],
    read: Callable[[Path], Interactions],
    settings: Settings,
) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        files=files,
        protocol=PROTOCOL,
        prepare=lambda directory, seed: prepare(read(directory), seed),
        model=lambda tables: SASRec(
            MODEL,
            history="seen",
            candidate="item",
            chosen="next",
            refused="unseen",
            dropout=0.2,
            tables=tables,
        ),
        loss=NextItemLoss(),
        settings=settings,
        published=(GAMES, GAMES_NDCG),
    )


def movielens() -> Recipe:
    """Return the recipe for MovieLens latest-small."""
    return _recipe(
        "movielens_sasrec",
        "SASRec on MovieLens latest-small",
        FILES,
        lambda directory: read_ratings(directory).events,
        Settings(batch_size=64, epochs=60, table_lr=0.05),
    )


def games() -> Recipe:
    """Return the recipe for Amazon's Video Games; users must obtain the data themselves."""
    return _recipe(
        "games_sasrec",
        "SASRec on Amazon Video Games",
        (GAMES_FILE,),
        read_games,
        Settings(batch_size=128, epochs=200, table_lr=0.05),
    )
