"""A generated click log in Criteo's layout, with a planted signal.

Synthetic: 13 counts, 26 categorical columns and a click per example, all from one seed. The chance
of a click is known, so the best AUC that any model can reach is known too.

* Column f has its own vocabulary, by default 20 to 50,000 ids, which follow Zipf's law.
* An id's key has 64 bits, computed from (column, id), so that one table serves all columns.
* The log-odds of a click are a constant, plus a hidden weight per id and per count, plus the dot
products of hidden vectors for three pairs among the first six columns.

Letters: B examples, F categorical columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsefleet.data.features import Categorical, Features, Numeric

NUM_COUNTS = 13
NUM_COLUMNS = 26
COLUMNS = tuple(f"C{column}" for column in range(1, NUM_COLUMNS + 1))
_PAIRS = ((0, 1), (2, 3), (4, 5))
_ZIPF_EXPONENT = 1.1


@dataclass(frozen=True, slots=True)
class ClickLog:
    """A log of B examples, stored as columns."""

    counts: np.ndarray
    """float32[B, 13], log(1 + count)."""
    keys: np.ndarray
    """int64[B, 26]."""
    clicks: np.ndarray
    """float32[B], 0 or 1."""
    chances: np.ndarray
    """float32[B], the planted chance of a click: the prediction of a perfect model."""

    def __len__(self) -> int:
        return len(self.clicks)

    def part(self, begin: int, end: int) -> ClickLog:
        """Return examples [begin, end), as views."""
        columns = (self.counts, self.keys, self.clicks, self.chances)
        return ClickLog(*(column[begin:end] for column in columns))

    def share(self, index: int, count: int) -> ClickLog:
        """Return the part of worker `index` of `count`: contiguous and nearly equal, as views."""
        return self.part(len(self) * index // count, len(self) * (index + 1) // count)

    def batches(self, size: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return batches (counts, keys, clicks) of up to `size` examples each, as views."""
        parts = (self.part(begin, begin + size) for begin in range(0, len(self), size))
        return [(part.counts, part.keys, part.clicks) for part in parts]

    def named_batches(self, size: int) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Return the same batches with named inputs, as the models in the zoo expect."""
        return [
            ({"counts": counts, "keys": keys}, clicks)
            for counts, keys, clicks in self.batches(size)
        ]


def features(dim: int) -> Features:
    """Describe the inputs of a model: 13 counts, and 26 columns that share one table."""
    counts = tuple(f"I{count}" for count in range(1, NUM_COUNTS + 1))
    keys = Categorical("keys", table="embedding", columns=COLUMNS, dim=dim)
    return Features(Numeric("counts", columns=counts), keys, label="clicks")


def generate(
    num_examples: int, seed: int = 0, *, vocabulary: tuple[int, int] = (20, 50_000)
) -> ClickLog:
    """Generate a log; the same arguments give the same log on any machine.

    vocabulary: the numbers of ids in the first and last column; they grow geometrically.
    """
    rng = np.random.default_rng(seed)
    sizes = np.geomspace(*vocabulary, NUM_COLUMNS).astype(np.int64)
    ids = np.stack([_draw_ids(rng, size, num_examples) for size in sizes], axis=1)
    counts = np.log1p(np.floor(rng.lognormal(1.0, 1.2, (num_examples, NUM_COUNTS))))
    log_odds = _planted_log_odds(rng, sizes, ids, counts)
    chances = 1.0 / (1.0 + np.exp(-log_odds))
    clicks = rng.random(num_examples) < chances
    return ClickLog(
        counts.astype(np.float32),
        _keys_of(ids),
        clicks.astype(np.float32),
        chances.astype(np.float32),
    )


def _draw_ids(rng: np.random.Generator, vocabulary_size: int, num_examples: int) -> np.ndarray:
    weights = np.arange(1, vocabulary_size + 1, dtype=np.float64) ** -_ZIPF_EXPONENT
    shares = np.cumsum(weights / weights.sum())
    drawn = np.searchsorted(shares, rng.random(num_examples))
    return np.minimum(drawn, vocabulary_size - 1)


def _planted_log_odds(
    rng: np.random.Generator, sizes: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    log_odds = np.full(len(ids), -1.1)
    for column, size in enumerate(sizes):
        log_odds += rng.normal(0.0, 0.25, size)[ids[:, column]]
    for left, right in _PAIRS:
        left_vectors = rng.normal(0.0, 0.6, (sizes[left], 2))[ids[:, left]]
        right_vectors = rng.normal(0.0, 0.6, (sizes[right], 2))[ids[:, right]]
        log_odds += (left_vectors * right_vectors).sum(axis=1)
    centered = counts - counts.mean(axis=0)
    return log_odds + centered @ rng.normal(0.0, 0.2, NUM_COUNTS)


def _keys_of(ids: np.ndarray) -> np.ndarray:
    """Spread (column, id) over all 64 bits; an odd multiplier keeps the keys distinct."""
    packed = ids.astype(np.uint64) + (np.arange(NUM_COLUMNS, dtype=np.uint64) << np.uint64(32))
    return (packed * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
