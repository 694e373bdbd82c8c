"""Redis unavailable, suspended, restarted empty, still loading, full: clear errors, and recovery
without help.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.redis_process import RedisProcess
from tests.unit.serving.small_export import exported_pairs, pairs

from sparsefleet import Predictor
from sparsefleet.errors import PublishError, StoreUnavailableError
from sparsefleet.serving.export.quantization import EncodedRows
from sparsefleet.serving.row_stores import RedisRows, UpdatedRows, push_rows
from sparsefleet.serving.updates import RedisServer, TableChanges, Update, open_log
from sparsefleet.serving.updates.update_log import RedisLog

WAIT_S = 60.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path) as process:
        yield process


def push(redis: RedisProcess, directory: Path) -> None:
    server = RedisServer(redis.url)
    push_rows(directory, server)
    server.close()


def update(sequence: int, previous: str | None = None) -> Update:
    """Return an update that sets the row of ad 7 to its sequence number."""
    keys = np.array([7], np.uint64)
    rows = EncodedRows(np.full((1, 4), sequence, np.float32), None)
    return Update(
        base=exported_pairs()[1].digest,
        sequence=sequence,
        snapshot_id=f"{sequence:016x}",
        previous=previous,
        made=1000.0 + sequence,
        tables={"ads": TableChanges(keys, rows, keys[:0])},
        dense={
            "head.weight": np.zeros((1, 7), np.float32),
            "head.bias": np.array([sequence], np.float32),
        },
    )


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"has not happened: {what}"
        time.sleep(0.01)


def test_an_unavailable_store_is_named_and_used_again_when_it_is_back(redis: RedisProcess) -> None:
    directory, manifest = exported_pairs()
    redis.kill()
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=0)
    predictor = Predictor(directory, rows=store)
    with pytest.raises(
        StoreUnavailableError, match="cannot be reached .*; check that Redis is running"
    ):
        predictor.predict(pairs([1], [2]))
    redis.start()
    with pytest.raises(StoreUnavailableError, match="restarted without its data"):
        predictor.predict(pairs([1], [2]))
    push(redis, directory)
    predictor.check_golden()
    store.check()
    redis.kill()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        predictor.predict(pairs([1], [2]))
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.check()
    store.close()


def test_a_store_restarted_empty_serves_no_zeros_but_what_is_cached(redis: RedisProcess) -> None:
    directory, manifest = exported_pairs()
    push(redis, directory)
    store = RedisRows(redis.url, manifest=manifest)
    predictor = Predictor(directory, rows=store)
    before = predictor.predict(pairs([1], [2]))
    redis.kill()
    redis.start()
    np.testing.assert_array_equal(predictor.predict(pairs([1], [2])), before)
    with pytest.raises(StoreUnavailableError, match="restarted without its data"):
        predictor.predict(pairs([1, 3], [2, 4]))
    with pytest.raises(StoreUnavailableError, match="not in the list of versions"):
        store.check()
    store.close()


def test_a_store_that_does_not_answer_is_waited_for_no_longer_than_configured(
    redis: RedisProcess,
) -> None:
    directory, manifest = exported_pairs()
    push(redis, directory)
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=0, timeout_s=1.0)
    predictor = Predictor(directory, rows=store)
    predictor.check_golden()
    redis.pause()
    try:
        with pytest.raises(StoreUnavailableError, match="did not answer within 1 s"):
            predictor.predict(pairs([1], [2]))
    finally:
        redis.go_on()
    predictor.check_golden()
    store.close()


def test_an_answer_that_comes_byte_by_byte_is_waited_for_no_longer_than_configured() -> None:
    pytest.importorskip("redis", reason="pip install sparsefleet[redis]")

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            for _ in range(600):  # each byte arrives in time, but no complete answer does
                connection.sendall(b"+")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RedisServer(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", timeout_s=0.3)
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        with (
            pytest.raises(StoreUnavailableError, match="did not answer within 0.3 s"),
            server.asking("nothing"),
        ):
            server.client.get("key")
        server.close()
        dripping.join()


def test_connections_that_redis_closed_are_replaced_without_an_error(redis: RedisProcess) -> None:
    directory, manifest = exported_pairs()
    push(redis, directory)
    store = RedisRows(redis.url, manifest=manifest, cache_bytes=0)
    predictor = Predictor(directory, rows=store)
    other = RedisServer(redis.url)
    for _ in range(3):
        predictor.check_golden()
        other.client.client_kill_filter(_type="normal", skipme=True)
    predictor.check_golden()
    store.close()
    other.close()


def test_a_redis_without_room_is_said_to_be_full(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, "--maxmemory", "1mb") as redis:
        server = RedisServer(redis.url)
        server.client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailableError, match="is full; raise its maxmemory"):
            push_rows(exported_pairs()[0], server)
        server.client.config_set("maxmemory", "0")
        push_rows(exported_pairs()[0], server)
        server.close()


def test_updates_stop_with_redis_and_resume_when_a_trainer_publishes_again(
    redis: RedisProcess,
) -> None:
    directory, manifest = exported_pairs()
    push(redis, directory)
    log = open_log(redis.url, manifest.digest)
    log.hold()
    log.append(*update(1).to_bytes())
    base = RedisRows(redis.url, manifest=manifest)
    rows = UpdatedRows(base, redis.url, manifest=manifest)
    predictor = Predictor(directory, rows=rows)
    assert predictor.predict(pairs([7], [2])) == 1.0
    redis.kill()
    wait_for(lambda: rows.problem is not None, "the service notices that Redis is away")
    assert "cannot be reached" in str(rows.problem)
    assert predictor.predict(pairs([7], [2])) == 1.0
    redis.start()
    wait_for(lambda: rows.problem is None, "the service reaches Redis again")
    assert rows.sequence == 1
    log.append(*update(2).to_bytes())
    wait_for(lambda: rows.sequence == 2, "a whole update of the restarted log")
    assert predictor.predict(pairs([7], [2])) == 2.0
    assert rows.freshness() == 1002.0
    log.close()
    rows.close()


def test_a_trainer_that_was_killed_is_forgotten_and_its_unfinished_update_removed(
    redis: RedisProcess,
) -> None:
    _, manifest = exported_pairs()
    first = RedisLog(RedisServer(redis.url), manifest.digest)
    first.hold()
    name, raw = update(1).to_bytes()
    server = RedisServer(redis.url)
    server.client.set(server.key(manifest.digest, "update", str(name), "0"), raw)
    second = RedisLog(RedisServer(redis.url), manifest.digest)
    with pytest.raises(PublishError, match="another trainer publishes to .* expires in"):
        second.hold()
    server.client.delete(server.key(manifest.digest, "publisher"))  # as when its lease expires
    second.hold()
    assert second.names() == []
    assert not server.client.exists(server.key(manifest.digest, "update", str(name), "0"))
    with pytest.raises(PublishError, match="has begun to publish"):
        first.append(name, raw)
    second.append(name, raw)
    assert second.read(name) == raw
    for each in (first, second):
        each.close()
    server.close()
