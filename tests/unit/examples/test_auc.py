from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from auc import auc
from click_log import generate


def brute_force_auc(clicks: np.ndarray, scores: np.ndarray) -> float:
    difference = scores[clicks > 0][:, None] - scores[clicks == 0][None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def test_auc_is_exact_also_with_ties() -> None:
    rng = np.random.default_rng(0)
    for distinct in (2, 5, 1000):
        clicks = rng.integers(0, 2, 300)
        scores = rng.integers(0, distinct, 300) / 7.0
        assert math.isclose(auc(clicks, scores), brute_force_auc(clicks, scores), rel_tol=1e-12)


def test_auc_of_one_kind_alone_is_nan() -> None:
    assert math.isnan(auc(np.ones(3), np.arange(3)))


def test_click_log_is_the_same_every_time_and_has_its_planted_signal() -> None:
    log, again = generate(5000, seed=3), generate(5000, seed=3)
    np.testing.assert_array_equal(log.keys, again.keys)
    np.testing.assert_array_equal(log.clicks, again.clicks)
    assert log.counts.shape == (5000, 13)
    assert log.keys.shape == (5000, 26)
    assert log.keys.dtype == np.int64
    assert auc(log.clicks, log.chances) > 0.75
    assert abs(log.clicks.mean() - log.chances.mean()) < 0.03


def test_keys_of_different_columns_never_meet() -> None:
    keys = generate(3000, seed=1).keys
    columns = [set(column) for column in keys.T]
    assert sum(map(len, columns)) == len(set().union(*columns))
