"""Rounds, clocks and watched changes behave the same in a LocalStore and on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.errors import (
    ConfigError,
    DeadlineError,
    NonFiniteError,
    NotFoundError,
    ShapeError,
)
from sparsefleet.store import Constant, DenseSpec, LocalStore, RoundMember, Store, TableSpec

T = TypeVar("T")
SPARSE = TableSpec(name="ads", dim=3, optimizer=optim.Adam(lr=0.05))
PLAIN = TableSpec(name="plain", dim=1, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
STRICT = TableSpec(name="strict", dim=1, optimizer=optim.SGD(lr=1.0), non_finite="raise")
DENSE = DenseSpec(name="net", size=20_000, optimizer=optim.Adagrad(lr=0.1), min_block_size=3_000)
LENIENT = DenseSpec(
    name="lenient",
    size=10_000,
    optimizer=optim.SGD(lr=0.1),
    min_block_size=1_000,
    non_finite="reject_row",
)
SPECS = (SPARSE, PLAIN, STRICT, DENSE, LENIENT)


@pytest.fixture(params=["local", "remote-1", "remote-2"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "local":
        with LocalStore() as made:
            _define(made)
            yield made
    else:
        with NativeServers(int(request.param[-1])) as servers, servers.connect() as made:
            _define(made)
            yield made


def _define(store: Store) -> None:
    for spec in SPECS:
        store.define(spec)


def together(size: int, work: Callable[[RoundMember], T], group: str = "train") -> list[T]:
    """Run ``work`` for all ranks at once; return the results by rank."""
    members = [RoundMember(group=group, rank=rank, size=size) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, members))


def gradients_of(rank: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rank, step])
    keys = rng.integers(0, 40, rng.integers(0, 30)).astype(np.int64)  # some of them repeat
    rows = rng.normal(size=(len(keys), SPARSE.dim)).astype(np.float32)
    return keys, rows, rng.normal(size=DENSE.size).astype(np.float32)


def push_rounds(store: Store, size: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    def work(member: RoundMember) -> list[tuple[int, ...]]:
        results = []
        for step in range(steps):
            keys, rows, gradient = gradients_of(member.rank, step)
            results.append(store.push_round(member, step, {"ads": (keys, rows)}, {"net": gradient}))
        store.leave_group(member)
        return results

    results = together(size, work)
    assert all(other == results[0] for other in results), "all members get the one result"
    return store.pull("ads", np.arange(40), train=False), store.pull_dense("net")


def test_rounds_end_in_the_same_bits_wherever_tables_live_and_whoever_comes_first() -> None:
    wanted: tuple[np.ndarray, np.ndarray] | None = None
    for num_servers in (0, 0, 1, 2):
        if num_servers == 0:
            with LocalStore() as local:
                _define(local)
                found = push_rounds(local, 3, 8)
        else:
            with NativeServers(num_servers) as servers, servers.connect() as remote:
                _define(remote)
                found = push_rounds(remote, 3, 8)
                assert remote.version("ads") == remote.version("net") == 8
        wanted = wanted or found
        for mine, theirs in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_round_applies_the_mean_of_its_members_as_one_step(store: Store) -> None:
    def work(member: RoundMember) -> None:
        keys = np.array([7, 10 + member.rank])
        store.push_round(member, 1, {"plain": (keys, np.full((2, 1), member.rank + 1, np.float32))})

    together(2, work)
    np.testing.assert_array_equal(
        store.pull("plain", np.array([7, 10, 11]), train=False)[:, 0], [-1.5, -0.5, -1.0]
    )
    assert store.version("plain") == 1


def test_members_may_bring_different_tables_or_nothing(store: Store) -> None:
    def work(member: RoundMember) -> None:
        one = np.ones((1, 1), np.float32)
        brought = [{"plain": (np.array([1]), one)}, {}, {"strict": (np.array([2]), one)}]
        store.push_round(member, 4, brought[member.rank])

    before = store.pull("strict", np.array([2]))
    together(3, work)
    np.testing.assert_allclose(store.pull("plain", np.array([1])), [[-1 / 3]])
    np.testing.assert_allclose(store.pull("strict", np.array([2])), before - np.float32(1 / 3))


def test_others_continue_without_a_member_that_has_left(store: Store) -> None:
    one = np.ones((1, 1), np.float32)

    def work(member: RoundMember) -> None:
        for step in range(5 if member.rank == 0 else 2):
            store.push_round(member, step, {"plain": (np.array([1]), one)})
        store.leave_group(member)
        store.leave_group(member)

    together(2, work)
    np.testing.assert_array_equal(store.pull("plain", np.array([1])), [[-5.0]])
    # All have left: the group starts over, from any number.
    together(2, lambda member: store.push_round(member, 0, {"plain": (np.array([1]), one)}))
    np.testing.assert_array_equal(store.pull("plain", np.array([1])), [[-6.0]])


def test_member_without_data_leaves_before_the_others_come(store: Store) -> None:
    store.leave_group(RoundMember(rank=1, size=2))
    result = store.push_round(
        RoundMember(rank=0, size=2), 1, {"plain": (np.array([1]), np.ones((1, 1), np.float32))}
    )
    assert result.applied == 1
    with pytest.raises(ConfigError, match="rank 1.*has left"):
        store.push_round(RoundMember(rank=1, size=2), 2, {})


def test_deadline_of_a_round_names_who_is_missing(store: Store) -> None:
    member = RoundMember(group="epoch", rank=1, size=3)
    with pytest.raises(DeadlineError, match=r"'epoch', round 9: 1 of 3.*rank 0, rank 2 did not"):
        store.push_round(member, 9, {}, timeout_s=0.3)
    # It has been withdrawn: the round can still take place.
    together(3, lambda m: store.push_round(m, 9, {}), "epoch")


def test_round_that_is_over_is_not_applied_again(store: Store) -> None:
    alone = RoundMember(size=1)
    gradients = {"plain": (np.array([1]), np.ones((1, 1), np.float32))}
    store.push_round(alone, 5, gradients)
    for late in (5, 3):
        with pytest.raises(ConfigError, match=f"round {late}.*the last one was 5"):
            store.push_round(alone, late, gradients)
    np.testing.assert_array_equal(store.pull("plain", np.array([1])), [[-1.0]])


def test_members_that_disagree_get_an_error_with_found_and_wanted(store: Store) -> None:
    store.leave_group(RoundMember(rank=0, size=3))
    with pytest.raises(ConfigError, match="rank 1 expects 2 members, but rank 0.* expects 3"):
        store.push_round(RoundMember(rank=1, size=2), 1, {})
    with pytest.raises(ConfigError, match="rank 1.*disagree on continue_without_lost"):
        store.push_round(RoundMember(rank=1, size=3, continue_without_lost=True), 1, {})
    with pytest.raises(ConfigError, match=r"RoundMember.rank must be an int in 0..1"):
        RoundMember(rank=2, size=2)


def test_gradients_that_are_refused_refuse_the_round_for_all(store: Store) -> None:
    def work(member: RoundMember) -> str:
        bad = np.full((1, 1), np.nan if member.rank == 1 else 1.0, np.float32)
        keys = np.array([4])
        with pytest.raises(NonFiniteError, match="rank 1.*'strict'.*key 4.*nothing was") as raised:
            store.push_round(
                member, 1, {"plain": (keys, np.ones((1, 1), np.float32)), "strict": (keys, bad)}
            )
        return str(raised.value)

    together(3, work)
    np.testing.assert_array_equal(store.pull("plain", np.array([4]), train=False), [[0.0]])
    assert store.version("plain") == 0
    together(3, lambda member: store.push_round(member, 2, {}))


def test_dense_gradient_that_is_skipped_counts_once_for_all(store: Store) -> None:
    def work(member: RoundMember) -> int:
        gradient = np.ones(LENIENT.size, np.float32)
        gradient[-1] = np.inf if member.rank == 0 else 1.0
        return store.push_round(member, 1, {}, {"lenient": gradient}).rejected_non_finite

    assert together(2, work) == [1, 1]
    np.testing.assert_array_equal(store.pull_dense("lenient"), np.zeros(LENIENT.size))


def test_clock_sums_over_members_also_those_that_left(store: Store) -> None:
    zero, one = (RoundMember(rank=rank, size=2) for rank in range(2))
    assert store.advance_clock(zero, 3) == 3
    assert store.advance_clock(one, 4) == 7
    store.leave_group(one)
    assert store.advance_clock(zero, 10, bound=2) == 14
    assert store.advance_clock(zero, 9) == 14  # a clock never goes back


def test_clock_with_a_bound_waits_for_the_slowest(store: Store) -> None:
    steps = 40
    seen = [0, 0, 0]

    def work(member: RoundMember) -> None:
        for clock in range(1, steps + 1):
            seen[member.rank] = clock
            store.advance_clock(member, clock, bound=2)
            assert min(seen) >= clock - 2
        store.leave_group(member)

    together(3, work)
    member = RoundMember(group="slow", rank=0, size=2)
    with pytest.raises(DeadlineError, match="clocks to reach 3.*rank 1 at 0"):
        store.advance_clock(member, 5, bound=2, timeout_s=0.3)


def test_learning_rate_of_a_smaller_count_is_ignored(store: Store) -> None:
    def rates() -> set[float]:
        return {server["table.plain.learning_rate"] for server in store.stats()}

    store.set_learning_rate("plain", 0.5, at=10)
    store.set_learning_rate("plain", 0.9, at=9)
    assert rates() == {0.5}
    store.set_learning_rate("plain", 0.25, at=10)
    assert rates() == {0.25}
    store.set_learning_rate("plain", 0.125)
    assert rates() == {0.125}


def taken(store: Store) -> dict[int, float]:
    rows: dict[int, float] = {}
    for keys, values in store.take_changes("plain"):
        assert values.shape == (len(keys), 1)
        for key, value in zip(keys.tolist(), values[:, 0].tolist(), strict=True):
            assert key not in rows, "a key comes once"
            rows[key] = value
    return rows


def test_changes_are_taken_once_with_the_values_of_now(store: Store) -> None:
    def push(*keys: int) -> None:
        store.push("plain", np.array(keys), np.ones((len(keys), 1), np.float32))

    with pytest.raises(NotFoundError, match="watch"):
        list(store.take_changes("plain"))
    push(1)
    store.watch_changes("plain")
    assert taken(store) == {}
    push(2, 3)
    push(3, 4)
    store.pull("plain", np.array([50, 51]))  # created, not changed
    store.watch_changes("plain")
    assert taken(store) == {2: -1.0, 3: -2.0, 4: -1.0}
    assert taken(store) == {}
    push(*range(200))
    store.erase("plain", np.arange(100))
    assert taken(store) == dict.fromkeys(range(100, 200), -1.0)
    push(7)
    store.erase("plain", np.array([7]))
    assert taken(store) == {}
    push(8)
    assert taken(store) == {8: -1.0}


def test_iteration_given_up_leaves_the_rest_to_the_next(store: Store) -> None:
    store.watch_changes("plain")
    keys = np.arange(500_000)
    store.push("plain", keys, np.ones((len(keys), 1), np.float32), unique=True)
    changes = store.take_changes("plain")
    first, _ = next(changes)
    changes.close()
    assert 0 < len(first) < len(keys)
    rest = np.concatenate([chunk for chunk, _ in store.take_changes("plain")])
    np.testing.assert_array_equal(np.sort(np.concatenate([first, rest])), keys)


def test_changes_of_rounds_and_imports_show(store: Store) -> None:
    store.watch_changes("plain")
    together(
        2,
        lambda member: store.push_round(
            member, 1, {"plain": (np.array([member.rank]), np.ones((1, 1), np.float32))}
        ),
    )
    assert taken(store) == {0: -0.5, 1: -0.5}
    rows = next(iter(store.rows("plain")))
    store.import_rows("plain", rows._replace(values=rows.values + 3))
    assert set(taken(store).values()) == {2.5}


def test_contains_finds_rows_without_creating_any() -> None:
    with LocalStore() as store:
        store.define(PLAIN)
        store.pull("plain", np.array([1, 2]))
        known = store.contains("plain", np.array([[1, 5], [9, 2]]))
        assert known.dtype == np.bool_
        np.testing.assert_array_equal(known, [[True, False], [False, True]])
        assert store.info("plain").size == 2
        assert store.contains("plain", []).shape == (0,)


def test_every_member_gets_the_dense_values_that_the_round_has_left(store: Store) -> None:
    odd = DenseSpec(name="odd", size=4_001, optimizer=optim.SGD(lr=0.5), min_block_size=1_000)
    store.define(odd)

    def deliver(member: RoundMember) -> tuple[np.ndarray, np.ndarray]:
        net, small = np.empty(DENSE.size, np.float32), np.empty(odd.size, np.float32)
        gradients = {
            "net": np.full(DENSE.size, member.rank + 1, np.float32),
            "lenient": np.ones(LENIENT.size, np.float32),
            "odd": np.arange(odd.size, dtype=np.float32),
        }
        store.push_round(member, 1, {}, gradients, values={"net": net, "odd": small})
        return net, small

    delivered = together(2, deliver)
    for net, small in delivered:
        np.testing.assert_array_equal(net, store.pull_dense("net"))
        np.testing.assert_array_equal(small, -0.5 * np.arange(odd.size, dtype=np.float32))


def test_values_come_back_with_a_push_that_is_skipped_for_its_own(store: Store) -> None:
    values = np.empty(LENIENT.size, np.float32)
    store.push_many({}, {"lenient": np.ones(LENIENT.size, np.float32)}, values={"lenient": values})
    np.testing.assert_array_equal(values, np.full(LENIENT.size, -0.1, np.float32))
    bad = np.full(LENIENT.size, np.nan, np.float32)
    again = np.empty(LENIENT.size, np.float32)
    result = store.push_many({}, {"lenient": bad}, values={"lenient": again})
    assert (result.applied, result.rejected_non_finite) == (0, 1)
    np.testing.assert_array_equal(again, values)


def test_values_after_a_push_need_room_for_all_of_them(store: Store) -> None:
    gradient = np.ones(LENIENT.size, np.float32)
    with pytest.raises(ShapeError, match="out must be float32 of shape"):
        store.push_many({}, {"lenient": gradient}, values={"lenient": gradient[1:]})
