"""User-item interactions: time splits, histories and negatives for recommendation models.

In shapes, N is the number of interactions, U the number of users, I the number of items, and K the
number of negatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError

__all__ = ["Interactions"]

Ids = NDArray[np.int64]
Ragged = tuple[Ids, Ids]
_MOST_ROUNDS = 100  # rounds of redrawing negatives that turned out to be positives


@dataclass(frozen=True, slots=True)
class Interactions:
    """N interactions of users with items, sorted by user and then by time.

    >>> seen = Interactions.of([7, 8, 7, 7], items=[1, 2, 3, 4], times=[30, 10, 20, 40])
    >>> seen.users.tolist(), seen.items.tolist()
    ([7, 7, 7, 8], [3, 1, 4, 2])
    >>> earlier, last = seen.leave_last_out()
    >>> earlier.items.tolist(), last.items.tolist()
    ([3, 1], [4])
    """

    users: Ids
    """The user ids, int64[N]."""
    items: Ids
    """The item ids, int64[N]."""
    times: NDArray[Any]
    """The time of each interaction, [N], in any unit."""
    rows: Ids
    """The position of each interaction in the arrays passed to `of`, int64[N], for use with other
    columns.
    """

    @staticmethod
    def of(users: Any, items: Any, times: Any) -> Interactions:
        """Return the interactions, sorted; those with equal times keep the order of the arrays."""
        columns = [np.asarray(column) for column in (users, items, times)]
        for name, column in zip(("users", "items", "times"), columns, strict=True):
            if column.ndim != 1 or len(column) != len(columns[0]) or column.dtype.kind not in "iuf":
                raise ShapeError(
                    f"{name} must be a one-dimensional array of numbers with the same length as "
                    "users, got "
                    f"{column.dtype}{list(column.shape)}; hash strings with data.hash_ids"
                )
            _require_finite(name, column)
        rows = np.lexsort((columns[2], columns[0]))
        return Interactions(
            _as_ids("users", columns[0])[rows],
            _as_ids("items", columns[1])[rows],
            columns[2][rows],
            rows.astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.users)

    def take(self, chosen: Any) -> Interactions:
        """Return the interactions selected by a mask bool[N] or by positions int[M] in ascending
        order.
        """
        columns = (self.users, self.items, self.times, self.rows)
        return Interactions(*(column[chosen] for column in columns))

    def with_enough(self, *, per_user: int = 1, per_item: int = 1) -> Interactions:
        """Drop users and items with too few interactions.

        Repeat until every remaining user and item has enough.
        """
        kept = self
        while True:
            enough = _counts(kept.users) >= per_user
            enough &= _counts(kept.items) >= per_item
            if enough.all():
                return kept
            kept = kept.take(enough)

    def split_by_time(self, share: float) -> tuple[Interactions, Interactions]:
        """Return the earliest `share` of all interactions, and the later interactions.

        Interactions with the same time stay together, in the later part.
        """
        if not 0 < share < 1:
            raise ConfigError(f"share must be a number with 0 < share < 1, got {share!r}")
        if not len(self):
            return self, self
        border = np.sort(self.times)[min(int(len(self) * share), len(self) - 1)]
        early = self.times < border
        return self.take(early), self.take(~early)

    def leave_last_out(self, count: int = 1) -> tuple[Interactions, Interactions]:
        """Return all but the last `count` interactions of each user, and those last interactions.

        Users with too few interactions are left out of both results.
        """
        _, sizes, place = self._by_user()
        size_of = np.repeat(sizes, sizes)
        is_kept = size_of > count
        is_last = place >= size_of - count
        return self.take(is_kept & ~is_last), self.take(is_kept & is_last)

    def histories(self, max_length: int) -> Ragged:
        """Return the items of the same user before each interaction, oldest first.

        The result is ragged: values int64[M], offsets int64[N + 1]; each history has at most the
        last `max_length` items.

        >>> seen = Interactions.of([7, 7, 7], items=[1, 2, 3], times=[1, 2, 3])
        >>> seen.histories(max_length=1)
        (array([1, 2]), array([0, 0, 1, 2]))
        """
        _, _, place = self._by_user()
        lengths = np.minimum(place, max_length)
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        begins = np.repeat(np.arange(len(self)) - lengths - offsets[:-1], lengths)
        return self.items[begins + np.arange(offsets[-1])], offsets

    def negatives(
        self, count: int, *, seed: int, known: Interactions | None = None, power: float = 0.0
    ) -> Ids:
        """For each interaction, draw `count` items that its user has not interacted with.

        known: the interactions that define which items exist and which items each user knows; None
            uses these interactions.
        power: items are drawn in proportion to their frequency raised to this power; 0 is uniform,
            1 is by popularity.
        Returns int64[N, K], the same for the same seed.

        >>> seen = Interactions.of([7, 7, 8], items=[1, 2, 3], times=[1, 2, 3])
        >>> seen.negatives(2, seed=0).tolist()[0]
        [3, 3]
        """
        known = self if known is None else known
        items, item_of, frequency = np.unique(known.items, return_inverse=True, return_counts=True)
        users, user_of = np.unique(known.users, return_inverse=True)
        own = np.unique(user_of * len(items) + item_of)
        user_at = np.searchsorted(users, self.users)
        is_known = (user_at < len(users)) & (
            users[np.minimum(user_at, len(users) - 1)] == self.users
        )
        first = np.where(is_known, user_at, len(users)) * len(items)
        shares = np.cumsum(frequency.astype(np.float64) ** power)
        rng = np.random.default_rng(seed)
        drawn = np.empty((len(self), count), np.int64)
        open_rows, open_columns = (part.reshape(-1) for part in np.indices(drawn.shape))
        for _ in range(_MOST_ROUNDS):
            chances = rng.random(len(open_rows)) * shares[-1]
            picked = np.minimum(np.searchsorted(shares, chances, side="right"), len(items) - 1)
            drawn[open_rows, open_columns] = items[picked]
            again = _contains(own, first[open_rows] + picked)
            open_rows, open_columns = open_rows[again], open_columns[again]
            if not len(open_rows):
                return drawn
        user = int(self.users[open_rows[0]])
        raise ConfigError(
            f"user {user}: found no negative item among {len(items)} items in {_MOST_ROUNDS} "
            "draws, because the user has interacted with nearly all of them; drop this user"
        )

    def _by_user(self) -> tuple[Ids, Ids, Ids]:
        """Return where each user's interactions start and how many there are.

        Also return the position of each interaction among its user's interactions, counted from 0.
        """
        if not len(self):
            empty = np.empty(0, np.int64)
            return empty, empty, empty
        starts = np.flatnonzero(np.concatenate(([True], self.users[1:] != self.users[:-1])))
        sizes = np.diff(starts, append=len(self))
        return starts, sizes, np.arange(len(self)) - np.repeat(starts, sizes)


def _as_ids(name: str, column: NDArray[Any]) -> Ids:
    """Return the column as integers. Raises ConfigError for floats that are no exact integers."""
    if column.dtype.kind != "f":
        return column.astype(np.int64)
    is_whole = (np.abs(column) <= 2**53) & (column == np.floor(column))
    if not is_whole.all():
        at = int(np.argmin(is_whole))
        raise ConfigError(
            f"{name}[{at}] is {column[at]}, expected an id, a whole number of at most 2**53 if it "
            "is a float; read ids as integers"
        )
    return column.astype(np.int64)


def _require_finite(name: str, column: NDArray[Any]) -> None:
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return
    row = int(np.argmin(np.isfinite(column)))
    raise ConfigError(
        f"{name}[{row}] is {column[row]}, expected a number; leave out interactions without one"
    )


def _counts(ids: Ids) -> Ids:
    """Return for each entry of the array how often its id occurs, int64[N]."""
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse])


def _contains(sorted_values: Ids, wanted: Ids) -> NDArray[np.bool_]:
    if not len(sorted_values):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return np.asarray(sorted_values[at] == wanted)
