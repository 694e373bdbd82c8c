"""The examples of bench/ctr_quality.py: generated logs, and ratings of books.

Letters: B examples, C counts, F slots.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctr_batches import NUM_IDS
from measure import ROOT
from sparsefleet.errors import InputMissingError
from sparsefleet.metrics import AUC
from sparsefleet.zoo.recipes import book_crossing

sys.path.insert(0, str(ROOT / "examples"))

from click_log import generate

SHARED = ROOT.parent / "shared" / "data"
NUM_TRAINED = {False: 200_000, True: 8_000}
NUM_HELD_OUT = {False: 40_000, True: 4_000}
VOCABULARY = (4, 200)
"""Few enough ids that each of them occurs often enough to be learned."""
TRAINED_SHARE = 0.85
QUICK_RATINGS = 12_000
NUMBERS = {"year": (1900.0, 100.0), "age": (0.0, 100.0)}
"""The lowest value and the range of fields that are also numeric inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Examples for CTR-DNN, as columns."""

    counts: np.ndarray
    """float32[B, C]."""
    ids: np.ndarray
    """int64[B, F], below NUM_IDS."""
    clicks: np.ndarray
    """int64[B], 0 or 1."""

    def part(self, places: slice | np.ndarray) -> Examples:
        return Examples(
            counts=self.counts[places], ids=self.ids[places], clicks=self.clicks[places]
        )

    def save(self, path: Path) -> None:
        np.savez(path, counts=self.counts, ids=self.ids, clicks=self.clicks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """What one seed of a comparison trains on and is scored on."""

    trained: Examples
    held_out: Examples
    best: float | None = None
    """The best AUC possible on the held-out examples, if known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Data, and the settings with which all sides train on it."""

    split: Callable[[int, bool], Split]
    """Return the examples of a seed; the flag is for a quick run."""
    batch: int
    """The number of examples per update."""
    lr: float
    """The learning rate of the layers."""
    row_lr: float
    """The learning rate of the rows: a row occurs in few examples of a batch."""


def generated_log(seed: int, quick: bool) -> Split:
    """Generate a log with a planted signal (examples/click_log.py)."""
    count = NUM_TRAINED[quick]
    log = generate(count + NUM_HELD_OUT[quick], seed=seed, vocabulary=VOCABULARY)
    whole = Examples(counts=log.counts, ids=dense_ids(log.keys), clicks=log.clicks.astype(np.int64))
    best = AUC()
    best.update(log.chances[count:], log.clicks[count:])
    return Split(
        trained=whole.part(slice(0, count)),
        held_out=whole.part(slice(count, None)),
        best=best.compute(),
    )


def book_ratings(seed: int, quick: bool) -> Split:
    """Split the explicit ratings of Book-Crossing, in an order that depends on the seed.

    A click is a rating of at least 8 of 10. InputMissingError says where to get the file.
    """
    whole = read_ratings()
    places = np.random.default_rng(seed).permutation(len(whole.clicks))
    places = places[: QUICK_RATINGS if quick else None]
    count = int(len(places) * TRAINED_SHARE)
    return Split(trained=whole.part(places[:count]), held_out=whole.part(places[count:]))


@functools.cache
def read_ratings() -> Examples:
    """Return all explicit ratings; every field is a slot, and the numeric ones are counts, too."""
    if not SHARED.is_dir():
        raise InputMissingError(f"{book_crossing.FILE.path}: directory ../shared/data not found")
    lines = csv.reader(book_crossing.FILE.lines(SHARED)[1:], delimiter="\t", quoting=csv.QUOTE_NONE)
    ratings, *fields = zip(*(row for row in lines if row[0] != "0"), strict=True)
    columns = dict(zip(book_crossing.NAMES, map(np.array, fields), strict=True))
    keys, num_ids = [], 0
    for column in columns.values():
        values, places = np.unique(column, return_inverse=True)
        keys.append(places + num_ids)
        num_ids += len(values)
    numbers = [scaled(columns[name], low, extent) for name, (low, extent) in NUMBERS.items()]
    return Examples(
        counts=np.stack(numbers, axis=1),
        ids=dense_ids(np.stack(keys, axis=1)),
        clicks=(np.array(ratings).astype(np.int64) >= 8).astype(np.int64),
    )


def scaled(texts: np.ndarray, low: float, extent: float) -> np.ndarray:
    """Return numbers as (number - low) / extent, at least 0 and at most 1.2; 0 if unknown."""
    numbers = np.where(texts == "", str(low), texts).astype(np.float32)
    return np.clip((numbers - low) / extent, 0.0, 1.2).astype(np.float32)


def dense_ids(keys: np.ndarray) -> np.ndarray:
    """Number the distinct keys from 0.

    >>> dense_ids(np.array([[700, 5], [5, 9]])).tolist()
    [[2, 0], [0, 1]]
    """
    distinct, ids = np.unique(keys, return_inverse=True)
    if len(distinct) > NUM_IDS:
        raise ValueError(f"found {len(distinct):,} distinct ids, expected at most {NUM_IDS:,}")
    return ids.reshape(keys.shape).astype(np.int64)


TASKS = {
    "generated": Task(split=generated_log, batch=100, lr=0.2, row_lr=5.0),
    "books": Task(split=book_ratings, batch=200, lr=0.3, row_lr=20.0),
}
"""The settings were chosen for local training."""
