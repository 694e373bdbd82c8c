from __future__ import annotations

import numpy as np
import pytest
from tests.unit.fluid.paddle.dataset.conftest import Put, zip_of

from sparsefleet.fluid.paddle.dataset import movielens, uci_housing


def test_housing_features_have_mean_zero_and_range_one(put: Put) -> None:
    rows = np.random.default_rng(3).normal(size=(10, 14))
    text = "\n".join(" ".join(f"{value:.6f}" for value in row) for row in rows)
    put(uci_housing, "URL", "MD5", "uci_housing", text.encode())
    train, test = list(uci_housing.train()()), list(uci_housing.test()())
    assert (len(train), len(test)) == (8, 2)
    features = np.stack([features for features, _ in train + test])
    np.testing.assert_allclose(features.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.ptp(features, axis=0), 1.0)
    np.testing.assert_allclose(train[0][1], rows[0, -1:], atol=1e-6)
    assert len(uci_housing.feature_names) == features.shape[1]


def test_a_housing_file_that_is_cut_short_is_refused(put: Put) -> None:
    put(uci_housing, "URL", "MD5", "uci_housing", b"1 2 3")
    with pytest.raises(ValueError, match="3 numbers cannot be split into rows of 14"):
        uci_housing.train()


@pytest.fixture
def ratings(put: Put) -> None:
    movies = "1::Toy Story (1995)::Animation|Comedy\n3::Caf\xe9 Story (2) (1994)::Drama\n"
    users = "1::F::1::10::48067\n7::M::56::16::70072\n"
    lines = "".join(
        f"{1 + 6 * (i % 2)}::{1 + 2 * (i % 3 == 0)}::{1 + i % 5}::9\n" for i in range(40)
    )
    files = {"ml-1m/movies.dat": movies, "ml-1m/users.dat": users, "ml-1m/ratings.dat": lines}
    put(movielens, "URL", "MD5", "movielens", zip_of(files))


def test_movies_and_users(ratings: None) -> None:
    assert movielens.max_movie_id() == 3
    assert movielens.max_user_id() == 7
    assert movielens.max_job_id() == 16
    assert movielens.movie_categories() == {"Animation": 0, "Comedy": 1, "Drama": 2}
    words = movielens.get_movie_title_dict()
    assert words == {"(2)": 0, "caf\xe9": 1, "story": 2, "toy": 3}
    assert movielens.movie_info()[3].value() == [3, [2], [1, 2, 0]]
    assert movielens.user_info()[1].value() == [1, 1, 0, 10]
    assert movielens.user_info()[7].value() == [7, 0, len(movielens.age_table) - 1, 16]


def test_ratings_are_dealt_to_train_and_test(ratings: None) -> None:
    train, test = list(movielens.train()()), list(movielens.test()())
    assert len(train) + len(test) == 40
    assert 0 < len(test) < 12
    assert len(train[0]) == 8
    assert {sample[-1][0] for sample in train} <= {-3.0, -1.0, 1.0, 3.0, 5.0}
    assert list(movielens.test()()) == test
