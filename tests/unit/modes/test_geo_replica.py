"""A worker's own copy of what it trains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sparsefleet.errors import NotFoundError
from sparsefleet.modes.geo import GeoReplica
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore, TableSpec

KEYS = np.array([3, 7], np.uint64)


def step(value: float) -> StepGradients:
    return StepGradients({"rows": (KEYS, np.full((2, 1), value, np.float32))})


def served(keys: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {table: np.ones((len(wanted), 1), np.float32) for table, wanted in keys.items()}


@pytest.fixture
def replica() -> Iterator[GeoReplica]:
    with LocalStore() as store:
        spec = TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0))
        yield GeoReplica(ModeSetting(store=store, tables={"rows": spec}))


def taken(chunks: Iterator[tuple[np.ndarray, np.ndarray]]) -> dict[int, float]:
    """Differences by key."""
    return {
        key: delta
        for keys, deltas in chunks
        for key, delta in zip(keys.tolist(), deltas[:, 0].tolist(), strict=True)
    }


def test_a_row_that_another_thread_fetched_and_trained_meanwhile_stays(
    replica: GeoReplica,
) -> None:
    def slow_fetch(keys: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        replica.pull(keys, served)
        replica.apply(step(0.25))
        return served(keys)

    np.testing.assert_array_equal(replica.pull({"rows": KEYS}, slow_fetch)["rows"], [[0.75]] * 2)


def test_only_unknown_rows_are_fetched(replica: GeoReplica) -> None:
    asked: list[list[int]] = []

    def fetch(keys: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        asked.append(keys["rows"].tolist())
        return served(keys)

    replica.pull({"rows": KEYS}, fetch)
    replica.pull({"rows": KEYS}, fetch)
    replica.apply(step(0.25))
    rows = replica.pull({"rows": np.array([9, 7], np.uint64)}, fetch)
    assert asked == [[3, 7], [9]]
    np.testing.assert_array_equal(rows["rows"], [[1.0], [0.75]])


def test_what_is_not_sent_stays_to_be_sent(replica: GeoReplica) -> None:
    replica.pull({"rows": KEYS}, served)
    replica.apply(step(1.0))
    assert taken(replica.take_row_deltas("rows", 4)) == {3: -0.25, 7: -0.25}
    assert taken(replica.take_row_deltas("rows", 4)) == {}  # not stepped since
    assert taken(replica.take_unsent_rows("rows")) == {3: -0.75, 7: -0.75}
    assert taken(replica.take_unsent_rows("rows")) == {}


def test_training_between_survives_what_comes_from_the_servers(replica: GeoReplica) -> None:
    replica.pull({"rows": KEYS}, served)
    replica.apply(step(0.5))
    other = np.array([7, 1000], np.uint64)
    replica.take_over_rows("rows", other, np.full((2, 1), 11.0, np.float32), exactly=False)
    np.testing.assert_array_equal(replica.pull({"rows": KEYS}, served)["rows"], [[0.5], [10.5]])
    replica.take_over_rows("rows", other, np.full((2, 1), 4.0, np.float32), exactly=True)
    np.testing.assert_array_equal(replica.pull({"rows": KEYS}, served)["rows"], [[0.5], [4.0]])
    fetched: list[int] = []
    replica.pull(
        {"rows": other}, lambda keys: fetched.extend(keys["rows"].tolist()) or served(keys)
    )
    assert fetched == [1000]  # never used here, so it was not kept


@pytest.mark.parametrize("room", [1, 3, 1000])
def test_rows_beyond_what_is_sent_at_a_time_are_exchanged_alike(
    replica: GeoReplica, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("sparsefleet.modes.geo._CHUNK_FLOATS", room)
    keys = np.arange(100, dtype=np.uint64)
    replica.pull({"rows": keys}, served)
    gradients = np.arange(100, dtype=np.float32).reshape(-1, 1) + 1
    replica.apply(StepGradients({"rows": (keys, gradients)}))
    halves = dict(zip(keys.tolist(), (-gradients[:, 0] / 2).tolist(), strict=True))
    assert taken(replica.take_row_deltas("rows", 2)) == halves
    replica.take_over_rows("rows", keys, 1 - gradients, exactly=False)  # another sent as much
    rows = replica.pull({"rows": keys}, served)["rows"]
    np.testing.assert_array_equal(rows, 1 - 1.5 * gradients)
    assert taken(replica.take_unsent_rows("rows")) == halves


def test_rows_with_nan_are_skipped_and_reported(
    replica: GeoReplica, caplog: pytest.LogCaptureFixture
) -> None:
    replica.pull({"rows": KEYS}, served)
    bad = np.array([[np.nan], [0.5]], np.float32)
    replica.apply(StepGradients({"rows": (KEYS, bad)}))
    assert "push to rows: 1 gradient rows" in caplog.text
    np.testing.assert_array_equal(replica.pull({"rows": KEYS}, served)["rows"], [[1.0], [0.5]])


def test_a_gradient_of_a_row_that_was_never_pulled_is_refused(replica: GeoReplica) -> None:
    with pytest.raises(NotFoundError, match="table 'rows': got a gradient for key 3"):
        replica.apply(step(1.0))
