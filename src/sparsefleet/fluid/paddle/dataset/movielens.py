"""The MovieLens 1M data set of movie ratings.

A sample is [user, gender, age class, job, movie, categories, title words, [rating]], with ratings
from -3 to 5.
"""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsefleet.fluid.paddle.dataset import common

__all__ = [
    "MovieInfo",
    "UserInfo",
    "age_table",
    "fetch",
    "get_movie_title_dict",
    "max_job_id",
    "max_movie_id",
    "max_user_id",
    "movie_categories",
    "movie_info",
    "test",
    "train",
    "user_info",
]

URL = "https://dataset.bj.bcebos.com/movielens%2Fml-1m.zip"
MD5 = "c4d9eecfca2ab87c1945afe126590906"

age_table = [1, 18, 25, 35, 45, 50, 56]

Reader = Callable[[], Iterator[list[Any]]]


@dataclass(frozen=True)
class MovieInfo:
    """A movie: its id, title and categories.

    >>> MovieInfo(1, ["Comedy"], "Toy Story ")
    MovieInfo(index=1, categories=['Comedy'], title='Toy Story ')
    """

    index: int
    categories: list[str]
    title: str

    def value(self) -> list[Any]:
        """Return [movie id, category indices, title word indices]."""
        categories, words = movie_categories(), get_movie_title_dict()
        return [
            self.index,
            [categories[name] for name in self.categories],
            [words[word.lower()] for word in self.title.split()],
        ]


@dataclass(frozen=True)
class UserInfo:
    """A user; `age` is the index in `age_table`.

    >>> UserInfo(2, is_male=False, age=0, job_id=10).value()
    [2, 1, 0, 10]
    """

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[int]:
        """Return [user id, 0 for male or 1 for female, age class, job id]."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]


def train(rand_seed: int = 0, test_ratio: float = 0.1) -> Reader:
    """Return a reader of the ratings that are not in `test`."""
    return lambda: _ratings(rand_seed, test_ratio, of_test=False)


def test(rand_seed: int = 0, test_ratio: float = 0.1) -> Reader:
    """Return a reader of a random subset, a fraction `test_ratio` of the ratings, chosen by the
    seed.
    """
    return lambda: _ratings(rand_seed, test_ratio, of_test=True)


def movie_info() -> dict[int, MovieInfo]:
    """Return a dict from movie id to MovieInfo."""
    return _movies(fetch())


def user_info() -> dict[int, UserInfo]:
    """Return a dict from user id to UserInfo."""
    return _users(fetch())


def movie_categories() -> dict[str, int]:
    """Return a dict from movie category to index."""
    return _categories(fetch())


def get_movie_title_dict() -> dict[str, int]:
    """Return a dict from lower-case title word to index."""
    return _title_words(fetch())


def max_movie_id() -> int:
    """Return the largest movie id."""
    return max(movie_info())


def max_user_id() -> int:
    """Return the largest user id."""
    return max(user_info())


def max_job_id() -> int:
    """Return the largest job id."""
    return max(user.job_id for user in user_info().values())


def fetch() -> str:
    """Download the archive if needed."""
    return common.download(URL, "movielens", MD5)


@functools.cache
def _movies(path: str) -> dict[int, MovieInfo]:
    movies = {}
    for index, title, categories in _lines(path, "movies"):
        name = title[: title.rindex("(")]  # the year follows
        movies[int(index)] = MovieInfo(int(index), categories.split("|"), name)
    return movies


@functools.cache
def _users(path: str) -> dict[int, UserInfo]:
    return {
        int(index): UserInfo(int(index), gender == "M", age_table.index(int(age)), int(job))
        for index, gender, age, job, _ in _lines(path, "users")
    }


@functools.cache
def _categories(path: str) -> dict[str, int]:
    return _numbered({name for movie in _movies(path).values() for name in movie.categories})


@functools.cache
def _title_words(path: str) -> dict[str, int]:
    titles = [movie.title.lower() for movie in _movies(path).values()]
    return _numbered({word for title in titles for word in title.split()})


def _numbered(names: set[str]) -> dict[str, int]:
    """Assign indices to the names in sorted order, so that all processes agree."""
    return {name: number for number, name in enumerate(sorted(names))}


def _ratings(rand_seed: int, test_ratio: float, *, of_test: bool) -> Iterator[list[Any]]:
    path = fetch()
    users, movies = _users(path), _movies(path)
    draws = np.random.RandomState(rand_seed)
    for user, movie, rating, _ in _lines(path, "ratings"):
        if (draws.random_sample() < test_ratio) == of_test:
            values = users[int(user)].value() + movies[int(movie)].value()
            yield [*values, [float(rating) * 2 - 5.0]]


def _lines(path: str, name: str) -> Iterator[list[str]]:
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(f"ml-1m/{name}.dat") as file,
        io.TextIOWrapper(file, encoding="latin-1") as lines,
    ):
        for line in lines:
            yield line.strip().split("::")
