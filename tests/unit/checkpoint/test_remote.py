"""Checkpoints in object stores: fsspec's own in memory, and S3 over HTTP served by moto."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer
from tests.support.checkpoints import ADS, contents, save, synthetic_rows, two_tables

from sparsefleet.checkpoint import Checkpoint, clean_up, latest, list_checkpoints, rotate
from sparsefleet.checkpoint.names import step_name
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.errors import (
    CheckpointIoError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

Place = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, Any]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys
    )
    client.create_bucket(Bucket="models")
    yield {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"},
    }
    client.close()
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """A separate folder, and the options to access it."""
    name = uuid.uuid4().hex
    if request.param == "memory":
        return f"memory://{name}", {}
    return f"s3://models/{name}", request.getfixturevalue("s3_options")


def files(place: Place) -> list[str]:
    system, path = fsspec.core.url_to_fs(place[0], **place[1])
    system.invalidate_cache()
    return sorted(system.find(path))


def test_round_trip_with_a_delta(place: Place, tmp_path: Any) -> None:
    path, options = place
    base, delta = f"{path}/{step_name(1)}", f"{path}/{step_name(2)}"
    for root, settings in ((path, options), (str(tmp_path), None)):
        base, delta = f"{root}/{step_name(1)}", f"{root}/{step_name(2)}"
        save(base, two_tables(), num_shards=2, step=1, storage_options=settings)
        save(
            delta,
            two_tables(1, 60),
            num_shards=3,
            step=2,
            base=base,
            removed={"ads": [100, 101]},
            storage_options=settings,
        )
    found = latest(path, options)
    assert found is not None
    assert found.manifest.base is not None
    assert found.manifest.base.path == f"../{step_name(1)}"
    found.verify()
    local = latest(str(tmp_path))
    assert local is not None
    assert contents(found) == contents(local)
    assert [listed.step for listed in list_checkpoints(path, options)] == [1, 2]
    assert rotate(path, 1, options) == []


def test_a_save_over_another_removes_it_after_the_commit(place: Place) -> None:
    path, options = place
    save(path, two_tables(1), step=1, storage_options=options)
    first = files(place)
    save(path, two_tables(2), step=2, storage_options=options)
    second = files(place)
    assert len(first) == len(second)
    assert len(set(first) & set(second)) == 1, "the manifest"
    checkpoint = Checkpoint.open(path, options)
    checkpoint.verify()
    assert checkpoint.manifest.step == 2


def test_an_aborted_save_leaves_nothing(place: Place) -> None:
    path, options = place
    with PendingCheckpoint.begin(path, options) as pending:
        pending.write_rows(ADS, 0, 1, [synthetic_rows(ADS, range(5))])
    assert files(place) == []


def test_a_crashed_save_is_removed_when_it_is_old_enough(place: Place) -> None:
    path, options = place
    save(path, two_tables(), storage_options=options)
    before = files(place)
    crashed = PendingCheckpoint.begin(path, options)
    crashed.write_rows(ADS, 0, 1, [synthetic_rows(ADS, range(5))])
    assert clean_up(path, options) == []
    assert len(files(place)) == len(before) + 2
    began = time.time()
    while not clean_up(path, options, stale_after_s=0.0):
        assert time.time() - began < 10, "the store keeps time in whole seconds"
    assert files(place) == before


def test_rotation_removes_folders(place: Place) -> None:
    path, options = place
    for step in (1, 2, 3):
        save(f"{path}/{step_name(step)}", two_tables(), step=step, storage_options=options)
    assert len(rotate(path, 1, options)) == 2
    assert [listed.step for listed in list_checkpoints(path, options)] == [3]
    assert all(step_name(3) in file for file in files(place))


def test_damage_and_loss_are_found(place: Place) -> None:
    path, options = place
    manifest = save(path, two_tables(), storage_options=options)
    entry = manifest.tables[0].files[0]
    system, root = fsspec.core.url_to_fs(path, **options)
    data = bytearray(system.cat_file(f"{root}/{entry.path}"))
    data[len(data) // 2] ^= 1
    system.pipe_file(f"{root}/{entry.path}", bytes(data))
    with pytest.raises(CorruptFileError, match=f"{path}/tables/ads.*checksum: expected"):
        Checkpoint.open(path, options).verify()
    system.rm_file(f"{root}/{entry.path}")
    with pytest.raises(CheckpointMissingError, match=f"{path}/tables/ads"):
        list(Checkpoint.open(path, options).rows("ads"))
    with pytest.raises(CheckpointMissingError, match="found no manifest.json"):
        Checkpoint.open(f"{path}/nowhere", options)


def test_a_store_that_refuses_gives_a_typed_error(s3_options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointIoError, match="s3://misspelt/a.*bucket does not exist"):
        save("s3://misspelt/a", two_tables(), storage_options=s3_options)
    unknown = s3_options | {"client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}
    unknown["config_kwargs"] = {"retries": {"max_attempts": 0}, "connect_timeout": 1}
    with pytest.raises(CheckpointIoError, match="read s3://models/a/manifest.json.*127.0.0.1:1"):
        Checkpoint.open("s3://models/a", unknown)


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match="nonsense://a"):
        Checkpoint.open("nonsense://a")
