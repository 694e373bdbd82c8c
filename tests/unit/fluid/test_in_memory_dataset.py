"""The life of records in memory: load, shuffle, pass, release."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet_workers import run_fleet
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import ConfigError, InputMissingError
from sparsefleet.fleet import Fleet


def variables() -> list[Any]:
    return [
        fluid.data("ads", [None, 1], "int64", lod_level=1),
        fluid.data("sites", [None, 1], "int64", lod_level=1),
        fluid.data("click", [None, 1], "int64"),
    ]


def write_clicks(path: Path, clicks: range) -> Path:
    path.write_text("".join(f"1 {n + 1} 1 {n + 1} 1 {n}\n" for n in clicks))
    return path


def dataset_of(*files: Path) -> fluid.InMemoryDataset:
    dataset = fluid.InMemoryDataset()
    dataset.set_use_var(variables())
    dataset.set_filelist([str(path) for path in files])
    return dataset


def clicks_of(dataset: fluid.InMemoryDataset) -> list[int]:
    return [click for feed in dataset for click in feed["click"][:, 0].tolist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_clicks(tmp_path / "part", range(100))


def test_a_pass_needs_records(path: Path) -> None:
    dataset = dataset_of(path)
    dataset.local_shuffle()  # nothing to shuffle: nothing happens
    with pytest.raises(ValueError, match="call load_into_memory"):
        iter(dataset)
    dataset.load_into_memory()
    assert clicks_of(dataset) == list(range(100))
    dataset.release_memory()
    with pytest.raises(ValueError, match="call load_into_memory"):
        iter(dataset)
    assert dataset.get_memory_data_size() == 0


def test_loading_in_the_background_is_waited_for(path: Path) -> None:
    dataset = dataset_of(path)
    dataset.preload_into_memory(2)
    with pytest.raises(ValueError, match="call wait_preload_done"):
        iter(dataset)
    dataset.wait_preload_done()
    assert clicks_of(dataset) == list(range(100))
    with pytest.raises(ValueError, match="call preload_into_memory"):
        dataset.wait_preload_done()
    dataset.set_filelist(["missing"])
    dataset.preload_into_memory()
    with pytest.raises(InputMissingError, match="missing"):
        dataset.wait_preload_done()


def test_the_order_of_a_shuffle_stays_until_the_next(path: Path) -> None:
    dataset = dataset_of(path)
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == 100
    assert dataset.get_shuffle_data_size() == 0
    dataset.local_shuffle(seed=1)
    first = clicks_of(dataset)
    assert first != list(range(100))
    assert sorted(first) == list(range(100))
    assert clicks_of(dataset) == first
    dataset.local_shuffle()  # also between passes
    assert clicks_of(dataset) != first
    assert dataset.get_shuffle_data_size() == 100


def test_without_a_fleet_a_global_shuffle_is_a_local_one(path: Path) -> None:
    dataset = dataset_of(path)
    with pytest.raises(ValueError, match="call load_into_memory"):
        dataset.global_shuffle()
    dataset.load_into_memory()
    dataset.global_shuffle(seed=2)
    assert clicks_of(dataset) != list(range(100))
    assert sorted(clicks_of(dataset)) == list(range(100))


def test_a_fleet_of_one_needs_no_model_to_shuffle(path: Path) -> None:
    fleet = Fleet()
    fleet.init()
    dataset = dataset_of(path)
    dataset.load_into_memory()
    dataset.global_shuffle(fleet, seed=2)
    assert sorted(clicks_of(dataset)) == list(range(100))
    assert dataset.get_shuffle_data_size(fleet) == 100


def test_what_slots_are_worth_can_be_measured(path: Path) -> None:
    dataset = dataset_of(path)
    dataset.load_into_memory()
    with pytest.raises(ValueError, match="call set_fea_eval"):
        dataset.slots_shuffle(["ads"])
    dataset.set_fea_eval(1000, True)
    dataset.slots_shuffle(["ads"])
    ads = [int(ad) for feed in dataset for ad in feed["ads"][0][:, 0]]
    sites = [int(site) for feed in dataset for site in feed["sites"][0][:, 0]]
    assert sites == list(range(1, 101))
    assert sorted(ads) == sites != ads


def test_texts_in_front_are_parsed_and_not_fed(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("1 id-7 1 some,content 1 0123456789abcdef 2 5 6 1 0 1 3\n")
    dataset = dataset_of(path)
    dataset.set_parse_ins_id(True)
    dataset.set_parse_content(True)
    dataset.set_parse_logkey(True)
    dataset.load_into_memory()
    (feed,) = dataset
    assert list(feed) == ["ads", "sites", "click"]
    assert feed["ads"][0][:, 0].tolist() == [5, 6]
    assert 'name: "ins_id"' in dataset.desc()


def test_records_with_one_id_are_merged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "part"
    path.write_text(
        "1 a 2 1 2 1 0 1 0\n1 b 1 3 1 0 1 1\n1 a 1 0 1 4 1 7\n1 alone 1 1 1 1 1 1\n"
        "1 b 1 0 1 5 1 0\n"
    )
    dataset = dataset_of(path)
    dataset.set_merge_by_lineid(2)
    dataset.load_into_memory()
    dataset.global_shuffle(seed=1)
    found = {}
    for feed in dataset:
        for row, click in enumerate(feed["click"][:, 0].tolist()):
            parts = []
            for name in ("ads", "sites"):
                values, offsets = feed[name]
                parts.append(values[offsets[row] : offsets[row + 1], 0].tolist())
            found[click] = parts
    assert found == {7: [[1, 2], [4]], 1: [[3], [5]]}
    assert "groups do not have 2 records" in caplog.text
    assert dataset.get_memory_data_size() == 5
    assert dataset.get_shuffle_data_size() == 2


def test_only_the_reader_that_there_is_can_be_named() -> None:
    dataset = fluid.InMemoryDataset()
    dataset.set_feed_type("MultiSlotInMemoryDataFeed")
    with pytest.raises(ValueError, match="got 'SlotRecordInMemoryDataFeed'"):
        dataset.set_feed_type("SlotRecordInMemoryDataFeed")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as running:
        yield running


@pytest.mark.parametrize("merged", [False, True])
def test_workers_deal_their_records_among_themselves(
    servers: NativeServers, tmp_path: Path, merged: bool
) -> None:
    for rank in range(2):
        lines = [
            f"1 {key} 1 {key if rank == 0 else 0} 1 {key if rank else 0} 1 {key if rank else 0}\n"
            for key in range(1, 501)
        ]
        (tmp_path / f"part-{rank}").write_text("".join(lines))

    def work(fleet: Fleet) -> tuple[int, int, list[int]]:
        dataset = dataset_of(tmp_path / f"part-{fleet.worker_index()}")
        dataset.set_parse_ins_id(True)
        if merged:
            dataset.set_merge_by_lineid()
        dataset.set_fleet_send_batch_size(32)
        dataset.set_fleet_send_sleep_seconds(0)
        dataset.load_into_memory()
        dataset.global_shuffle(fleet, 4)
        return (
            dataset.get_memory_data_size(fleet),
            dataset.get_shuffle_data_size(fleet),
            clicks_of(dataset),
        )

    outcomes = run_fleet(servers, 2, work)
    clicks = sorted(chain(*(outcome[2] for outcome in outcomes)))
    for loaded, held, _ in outcomes:
        assert loaded == 1000
        assert held == len(clicks) == (500 if merged else 1000)
    assert clicks[-500:] == list(range(1, 501))
    assert all(len(outcome[2]) > len(clicks) / 2 * 0.85 for outcome in outcomes)


def test_nothing_is_done_with_records_that_are_being_loaded(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("1 7\n")
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([fluid.data("ads", [None, 1], "int64", lod_level=1)])
    dataset.set_filelist([str(path)])
    dataset.preload_into_memory()
    calls = (
        dataset.preload_into_memory,
        dataset.load_into_memory,
        dataset.local_shuffle,
        dataset.global_shuffle,
    )
    for call in calls:
        with pytest.raises(ConfigError, match="wait_preload_done"):
            call()
    dataset.wait_preload_done()
    dataset.local_shuffle()
