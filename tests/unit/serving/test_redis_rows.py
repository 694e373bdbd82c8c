"""Rows in a real Redis: the same as in the files, or an error that says why not."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.redis_process import RedisProcess
from tests.unit.serving.small_export import ROWS, exported_pairs, pairs

from sparsefleet import Predictor
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
    StoreUnavailableError,
)
from sparsefleet.serving.row_stores import RedisRows, RedisVersions, push_rows
from sparsefleet.serving.row_stores.redis_rows import COMPLETE
from sparsefleet.serving.updates import RedisServer


@pytest.mark.parametrize("rows", ["float32", "float16", "int8"])
@pytest.mark.parametrize("cache_bytes", [0, 500, 1 << 20])
def test_predictions_equal_those_from_files_bit_for_bit(
    rows: Any, cache_bytes: int, server: RedisServer, redis: RedisProcess
) -> None:
    directory, manifest = exported_pairs(rows)
    push_rows(directory, server)
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=cache_bytes)
    ads, users = np.random.default_rng(1).integers(-5, ROWS + 10, (2, 400))
    for _ in range(2):
        found = Predictor(directory, rows=store).predict(pairs(ads, users))
        np.testing.assert_array_equal(found, Predictor(directory).predict(pairs(ads, users)))
    store.check()
    assert (store.cache_hits > 0) == (cache_bytes > 0)
    store.close()


def test_ids_that_are_not_announced_are_fetched_and_known_ones_told(
    server: RedisServer, redis: RedisProcess
) -> None:
    directory, manifest = exported_pairs()
    push_rows(directory, server)
    store = RedisRows(redis.url, manifest=manifest)
    files = Predictor(directory).rows.tables()
    tables = store.tables({"ads": np.array([3, 5])})
    for name in ("ads", "users"):
        ids = np.array([[5, 7], [900, 3]])
        for unknown in ("zeros", "initial"):
            np.testing.assert_array_equal(
                tables[name].look_up(ids, unknown=unknown, padding_id=3),
                files[name].look_up(ids, unknown=unknown, padding_id=3),
            )
        keys = np.array([49, 50, 2**64 - 1, 0], np.uint64)
        assert tables[name].known(keys).tolist() == [True, False, False, True]
    store.close()


def test_a_version_is_not_there_before_it_is_whole(
    server: RedisServer, redis: RedisProcess
) -> None:
    directory, manifest = exported_pairs()

    def stop(table: str, done: int, of: int) -> None:
        if table == "users":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_rows(directory, server, progress=stop)
    versions = RedisVersions(server)
    assert versions.all() == []
    with pytest.raises(CheckpointMissingError, match="no complete version"):
        versions.activate(manifest.digest)
    store = RedisRows(redis.url, manifest=manifest)
    with pytest.raises(StoreUnavailableError, match="not in the list of versions"):
        store.check()
    # The first table is complete, the second is not: a prediction needs both.
    with pytest.raises(StoreUnavailableError, match="rows of table 'users' are missing"):
        Predictor(directory, rows=store).predict(pairs([1], [1]))
    push_rows(directory, server)
    store.check()
    Predictor(directory, rows=store).check_golden()
    store.close()


def test_versions_stand_side_by_side_and_one_key_says_which_is_served(
    server: RedisServer, redis: RedisProcess
) -> None:
    versions = RedisVersions(server)
    (first, one), (second, two) = exported_pairs(), exported_pairs(seed=1)
    push_rows(first, server, label="day 1")
    with pytest.raises(CheckpointMissingError, match="no version is active"):
        RedisRows(redis.url)
    versions.activate("day 1")
    old = RedisRows(redis.url)
    push_rows(second, server, label="day 2")
    assert versions.active() == one.digest
    versions.activate(two.digest)
    new = RedisRows(redis.url)
    assert (old.version, new.version) == (one.digest, two.digest)
    for directory, store in ((first, old), (second, new)):
        Predictor(directory, rows=store).check_golden()
    with pytest.raises(
        CheckpointMismatchError, match="serve that export, or push the rows of this export"
    ):
        Predictor(first, rows=new)
    assert versions.rollback().label == "day 1"
    with pytest.raises(CheckpointMissingError, match="no previously active version"):
        versions.rollback()
    with pytest.raises(ConfigError, match="is active; activate a different"):
        versions.delete("day 1")
    versions.delete("day 2")
    assert [each.label for each in versions.all()] == ["day 1"]
    with pytest.raises(StoreUnavailableError, match="the version was deleted"):
        new.tables({"ads": np.arange(ROWS)})
    with pytest.raises(CheckpointMissingError, match="it has day 1"):
        versions.activate("day 2")
    old.close()
    new.close()


def test_a_second_push_of_a_version_changes_nothing_and_a_label_is_free_once(
    server: RedisServer,
) -> None:
    (first, one), (second, _) = exported_pairs(), exported_pairs(seed=1)
    pushed = push_rows(first, server, label="a")
    assert push_rows(first, server, label="b").pushed == pushed.pushed
    assert push_rows(first, server).label == "b"
    with pytest.raises(CheckpointError, match=f"'b' already names version {one.digest}"):
        push_rows(second, server, label="b")


def test_of_two_pushes_at_once_one_is_refused(server: RedisServer) -> None:
    directory, _ = exported_pairs()
    second: list[BaseException] = []

    def meanwhile(table: str, done: int, of: int) -> None:
        if not second:
            with pytest.raises(CheckpointError, match="is being pushed to .* by") as refused:
                push_rows(directory, server)
            second.append(refused.value)

    push_rows(directory, server, progress=meanwhile)
    assert second
    RedisVersions(server).activate(exported_pairs()[1].digest)


def test_a_push_whose_place_was_taken_stops(server: RedisServer) -> None:
    directory, manifest = exported_pairs()
    lock = server.key(manifest.digest, "loading")

    def taken(table: str, done: int, of: int) -> None:
        server.client.set(lock, "other, process 1, token")

    with pytest.raises(CheckpointError, match="by other, process 1"):
        push_rows(directory, server, progress=taken)
    assert server.client.get(lock).startswith(b"other")
    assert RedisVersions(server).all() == []


def test_an_evicted_table_is_unavailable_and_never_zeros(
    server: RedisServer, redis: RedisProcess
) -> None:
    directory, manifest = exported_pairs()
    push_rows(directory, server)
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=0)
    server.client.delete(RedisVersions(server).rows_key(manifest.digest, "ads"))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="table 'ads' are missing"):
            Predictor(directory, rows=store).predict(pairs([1], [1]))
    with pytest.raises(StoreUnavailableError, match="sparsefleet push-rows"):
        store.check()
    push_rows(directory, server)  # it notices that the listed version is incomplete
    Predictor(directory, rows=store).check_golden()
    store.close()


def test_a_row_of_another_width_is_named(server: RedisServer, redis: RedisProcess) -> None:
    directory, manifest = exported_pairs()
    push_rows(directory, server)
    key = RedisVersions(server).rows_key(manifest.digest, "ads")
    server.client.hset(key, (7).to_bytes(8, "little"), b"123")
    server.client.hset(key, (6).to_bytes(8, "little"), bytes(16 + 13))  # together they fit
    store = RedisRows(redis.url, manifest=manifest)
    with pytest.raises(
        CorruptFileError, match="the row of key 6 has 29 bytes in Redis, expected 16"
    ):
        store.tables({"ads": np.array([6, 7])})
    store.close()


def test_a_push_that_something_else_writes_into_is_not_whole(server: RedisServer) -> None:
    directory, manifest = exported_pairs()
    key = RedisVersions(server).rows_key(manifest.digest, "ads")

    def meddle(table: str, done: int, of: int) -> None:
        server.client.hset(key, b"stranger", b"1")

    with pytest.raises(CheckpointError, match="has 51 rows after the push, expected 50"):
        push_rows(directory, server, progress=meddle)
    assert server.client.hget(key, COMPLETE) is None


def test_many_threads_get_the_right_rows_from_a_small_cache(
    server: RedisServer, redis: RedisProcess
) -> None:
    directory, manifest = exported_pairs()
    push_rows(directory, server)
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=3000)
    predictor, files = Predictor(directory, rows=store), Predictor(directory)
    start = threading.Barrier(4)

    def predict(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait(30)
        for _ in range(30):
            batch = pairs(*rng.integers(0, ROWS + 5, (2, 20)))
            np.testing.assert_array_equal(predictor.predict(batch), files.predict(batch))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(predict, range(4)))
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1", "a Redis address must be"),
        ("redis://127.0.0.1:1?model=a:b", "a model name in Redis must"),
    ],
)
def test_invalid_addresses_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RedisServer(url)


def test_messages_do_not_tell_passwords(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as process:
        process.kill()
        url = f"redis://me:verysecret@127.0.0.1:{process.port}"
        store = RedisRows(url, manifest=exported_pairs()[1])
        with pytest.raises(StoreUnavailableError) as unavailable:
            store.check()
        assert "verysecret" not in str(unavailable.value)
        assert "cannot be reached" in str(unavailable.value)
        store.close()


def test_a_list_of_versions_that_something_else_wrote_is_named(server: RedisServer) -> None:
    server.client.hset(server.key("versions"), "x", '{"digest": "x", "more": 1}')
    with pytest.raises(CorruptFileError, match="lists a version that cannot be read"):
        RedisVersions(server).all()


def test_an_export_with_damaged_rows_is_not_pushed(server: RedisServer, tmp_path: Path) -> None:
    directory, manifest = exported_pairs()
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    file = copy / manifest.table("ads").file
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CorruptFileError, match="has changed since it was written"):
        push_rows(copy, server)
    assert RedisVersions(server).all() == []
