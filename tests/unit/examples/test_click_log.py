from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from sparsefleet.metrics import AUC

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from click_log import generate


def test_log_is_the_same_every_time_and_has_its_planted_signal() -> None:
    log, again = generate(5000, seed=3), generate(5000, seed=3)
    np.testing.assert_array_equal(log.keys, again.keys)
    np.testing.assert_array_equal(log.clicks, again.clicks)
    assert log.counts.shape == (5000, 13)
    assert log.keys.shape == (5000, 26)
    assert log.keys.dtype == np.int64
    auc = AUC()
    auc.update(log.chances, log.clicks)
    assert auc.compute() > 0.75
    assert abs(log.clicks.mean() - log.chances.mean()) < 0.03


def test_vocabulary_sets_the_numbers_of_ids_of_the_first_and_the_last_column() -> None:
    keys = generate(20_000, vocabulary=(3, 50)).keys
    numbers = [len(set(column)) for column in keys.T]
    assert (numbers[0], numbers[-1]) == (3, 50)
    assert numbers == sorted(numbers)


def test_keys_of_different_columns_never_meet() -> None:
    keys = generate(3000, seed=1).keys
    columns = [set(column) for column in keys.T]
    assert sum(map(len, columns)) == len(set().union(*columns))


def test_shares_of_workers_are_the_whole_log() -> None:
    log = generate(1000)
    shares = [log.share(index, 3) for index in range(3)]
    assert [len(share) for share in shares] == [333, 333, 334]
    np.testing.assert_array_equal(np.concatenate([share.keys for share in shares]), log.keys)
    batches = shares[0].batches(100)
    assert [len(clicks) for _, _, clicks in batches] == [100, 100, 100, 33]
