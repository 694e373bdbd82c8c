from __future__ import annotations

import numpy as np
import pytest

from sparsefleet.data.interactions import Interactions
from sparsefleet.errors import ConfigError, ShapeError


def some(num: int = 500, seed: int = 0) -> Interactions:
    rng = np.random.default_rng(seed)
    return Interactions.of(rng.integers(20, size=num), rng.integers(60, size=num), rng.random(num))


def test_interactions_are_sorted_by_user_and_time_and_know_their_rows() -> None:
    users, items, times = [2, 1, 2, 1], [10, 11, 12, 13], [5.0, 4.0, 3.0, 4.0]
    found = Interactions.of(users, items, times)
    assert found.users.tolist() == [1, 1, 2, 2]
    assert found.items.tolist() == [11, 13, 12, 10]
    assert np.array(items)[found.rows].tolist() == found.items.tolist()


def test_a_split_by_time_leaves_no_later_interaction_in_the_first_part() -> None:
    found = some()
    early, late = found.split_by_time(0.8)
    assert len(early) + len(late) == len(found)
    assert early.times.max() < late.times.min()
    assert len(early) == 400
    with pytest.raises(ConfigError, match="0 < share < 1"):
        found.split_by_time(1.0)


def test_equal_times_are_not_split() -> None:
    early, late = Interactions.of([1, 2, 3], [1, 2, 3], [7, 7, 7]).split_by_time(0.5)
    assert (len(early), len(late)) == (0, 3)


def test_the_last_of_each_user_are_left_out() -> None:
    found = some()
    rest, last = found.leave_last_out(2)
    for user in np.unique(found.users):
        own = found.items[found.users == user]
        assert last.items[last.users == user].tolist() == own[-2:].tolist()
        assert rest.items[rest.users == user].tolist() == own[:-2].tolist()


def test_histories_hold_the_users_items_before() -> None:
    found = some(60)
    values, offsets = found.histories(3)
    for at in range(len(found)):
        before = [int(found.items[i]) for i in range(at) if found.users[i] == found.users[at]]
        assert values[offsets[at] : offsets[at + 1]].tolist() == before[-3:]


def test_negatives_are_never_the_users_own_and_repeat_for_a_seed() -> None:
    found = some()
    own = {(int(u), int(i)) for u, i in zip(found.users, found.items, strict=True)}
    drawn = found.negatives(5, seed=1)
    assert drawn.shape == (len(found), 5)
    for user, items in zip(found.users.tolist(), drawn.tolist(), strict=True):
        assert not any((user, item) in own for item in items)
    assert np.array_equal(drawn, found.negatives(5, seed=1))
    assert not np.array_equal(drawn, found.negatives(5, seed=2))


def test_popular_items_are_drawn_more_often_with_a_power() -> None:
    users = np.arange(1000)
    items = np.where(users % 10 == 0, users % 7 + 1, 0)
    found = Interactions.of(users, items, users)
    asking = Interactions.of([5000] * 2000, [0] * 2000, [0] * 2000)
    share = [(asking.negatives(1, seed=0, known=found, power=p) == 0).mean() for p in (0.0, 1.0)]
    assert share[0] < 0.2 < 0.8 < share[1]


def test_a_user_with_all_items_is_an_error() -> None:
    with pytest.raises(ConfigError, match="user 7: found no negative item among 2"):
        Interactions.of([7, 7], [1, 2], [1, 2]).negatives(1, seed=0)


def test_rare_users_and_items_are_dropped_until_none_is_left() -> None:
    kept = some().with_enough(per_user=18, per_item=6)
    assert len(kept)
    assert np.unique(kept.users, return_counts=True)[1].min() >= 18
    assert np.unique(kept.items, return_counts=True)[1].min() >= 6


def test_strings_are_refused_with_what_to_do() -> None:
    with pytest.raises(ShapeError, match="users must be .*hash strings with data.hash_ids"):
        Interactions.of(["a"], [1], [1])


@pytest.mark.parametrize("wrong", [1.5, float("nan"), float("inf"), 2.0**60])
def test_floats_that_are_no_ids_are_refused(wrong: float) -> None:
    assert Interactions.of([2.0, 1.0], [3.0, 4.0], [0.5, 0.5]).users.tolist() == [1, 2]
    with pytest.raises(ConfigError, match=r"users\[1\] is .*, expected "):
        Interactions.of([1.0, wrong], [3, 4], [1, 2])
    with pytest.raises(ConfigError, match=r"items\[\d\] is .*, expected "):
        Interactions.of([3, 4], [1.0, wrong], [1, 2])
