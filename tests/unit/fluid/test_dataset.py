"""What Fluid's Datasets read, and how they are configured."""

from __future__ import annotations

import gzip
import struct
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.data import Slot, split_files
from sparsefleet.errors import BadLineError, InputFileError, InputMissingError, PipeCommandError

KINDS = ["QueueDataset", "InMemoryDataset"]


def variables() -> list[Any]:
    return [
        fluid.data("dense", [None, 2], "float32"),
        fluid.layers.data("ads", shape=[1], dtype="int64", lod_level=1),
        fluid.layers.data("click", shape=[1], dtype="int64"),
    ]


def dataset_of(kind: str, *files: Path, **settings: Any) -> Any:
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_use_var(settings.pop("variables", None) or variables())
    dataset.set_filelist([str(path) for path in files])
    for name, value in settings.items():
        getattr(dataset, f"set_{name}")(value)
    return dataset


def feeds_of(dataset: Any) -> list[dict[str, Any]]:
    if isinstance(dataset, fluid.InMemoryDataset):
        dataset.load_into_memory()
    return list(dataset)


def clicks_of(dataset: Any) -> list[list[int]]:
    return [feed["click"][:, 0].tolist() for feed in feeds_of(dataset)]


def write_clicks(path: Path, clicks: range) -> Path:
    path.write_text("".join(f"2 0.5 0.25 1 {n + 1} 1 {n}\n" for n in clicks))
    return path


def test_the_factory_knows_its_names() -> None:
    factory = fluid.DatasetFactory()
    assert type(factory.create_dataset()) is fluid.QueueDataset
    assert type(factory.create_dataset("FileInstantDataset")) is fluid.FileInstantDataset
    with pytest.raises(ValueError, match="datafeed_class must be one of .* got 'BoxPSDataset'"):
        factory.create_dataset("BoxPSDataset")


@pytest.mark.parametrize("kind", KINDS)
def test_lines_become_feeds(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 0.5 0.25 3 17 18 99 1 1\n2 1 2 1 18446744073709551615 1 0\n")
    (feed,) = feeds_of(dataset_of(kind, path))
    assert list(feed) == ["dense", "ads", "click"]
    assert feed["dense"].tolist() == [[0.5, 0.25], [1, 2]]
    values, offsets = feed["ads"]
    assert values.shape == (4, 1)
    assert values[:, 0].tolist() == [17, 18, 99, -1]  # by bit pattern
    assert offsets.tolist() == [0, 3, 4]
    assert feed["click"].tolist() == [[1], [0]]
    assert feed["click"].dtype == np.int64


def test_only_records_in_memory_lose_their_zeros(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 0 0 3 0 0 7 1 0\n2 0 0 2 0 0 1 0\n")
    (queued,) = feeds_of(dataset_of("QueueDataset", path))
    assert queued["ads"][0][:, 0].tolist() == [0, 0, 7, 0, 0]
    (kept,) = feeds_of(dataset_of("InMemoryDataset", path))
    assert kept["ads"][0][:, 0].tolist() == [7, 0]
    assert kept["ads"][1].tolist() == [0, 1, 2]
    assert kept["dense"].tolist() == [[0, 0], [0, 0]]
    assert kept["click"].tolist() == [[0], [0]]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_of_32_or_as_said_and_the_last_is_short(kind: str, tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "part", range(70))
    assert [len(clicks) for clicks in clicks_of(dataset_of(kind, path))] == [32, 32, 6]
    assert [len(c) for c in clicks_of(dataset_of(kind, path, batch_size=40))] == [40, 30]
    with pytest.raises(ValueError, match="batch_size must be an int >= 1, got 0"):
        clicks_of(dataset_of(kind, path, batch_size=0))


def test_each_reading_thread_of_a_queue_may_end_with_a_short_batch(tmp_path: Path) -> None:
    files = [write_clicks(tmp_path / f"{i}", range(i * 10, i * 10 + 10)) for i in range(3)]
    dataset = dataset_of("QueueDataset", *files, batch_size=8, thread=10)
    for _ in range(2):
        batches = clicks_of(dataset)
        assert sorted(click for batch in batches for click in batch) == list(range(30))
        assert sum(len(batch) < 8 for batch in batches) <= 3  # threads are no more than files


def test_each_queue_of_records_in_memory_may_end_with_a_short_batch(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "part", range(10))
    dataset = dataset_of("InMemoryDataset", path, batch_size=3, thread=2)
    assert clicks_of(dataset) == [[0, 1, 2], [5, 6, 7], [3, 4], [8, 9]]
    assert [feed["click"][:, 0].tolist() for feed in dataset] == [
        [0, 1, 2],
        [5, 6, 7],
        [3, 4],
        [8, 9],
    ]
    dataset.set_queue_num(1)
    assert [len(feed["click"]) for feed in dataset] == [3, 3, 3, 1]
    dataset.set_queue_num(3)
    with pytest.raises(
        ValueError, match=r"queue_num must be in 1..2, the number of threads, got 3"
    ):
        list(dataset)
    dataset.set_queue_num(1)
    dataset.set_thread(0)  # counts as 1
    assert [len(feed["click"]) for feed in dataset] == [3, 3, 3, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_variables_can_be_declared_in_steps_and_as_slots(kind: str, tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "part", range(3))
    dataset = dataset_of(kind, path, variables=variables()[:2])
    dataset.set_use_var([Slot("click", "uint64", (1,))])
    assert clicks_of(dataset) == [[0, 1, 2]]


def test_variables_that_no_file_can_hold_are_refused() -> None:
    dataset = fluid.QueueDataset()
    with pytest.raises(
        ValueError, match="'x': dtype must be float32 or int64, as in files, got 'float64'"
    ):
        dataset.set_use_var([fluid.data("x", [None, 1], "float64")])
    with pytest.raises(ValueError, match=r"'x': the shape of a dense slot must begin with -1"):
        dataset.set_use_var([fluid.data("x", [3], "int64")])
    with pytest.raises(ValueError, match=r"lod_level=1"):
        dataset.set_use_var([fluid.data("x", [None, None], "int64")])
    with pytest.raises(ValueError, match="set_use_var takes variables, got 3"):
        dataset.set_use_var([3])


@pytest.mark.parametrize("kind", KINDS)
def test_the_pipe_command_is_read_by_a_shell(kind: str, tmp_path: Path) -> None:
    raw = tmp_path / "part.gz"
    raw.write_bytes(gzip.compress(b"5\n6\n"))  # unpacked before the command
    command = "sed 's/^/2 0 0 1 9 1 /' | cat"
    assert clicks_of(dataset_of(kind, raw, pipe_command=command)) == [[5, 6]]
    with pytest.raises(PipeCommandError, match=r"part.gz.*exit code 3"):
        clicks_of(dataset_of(kind, raw, pipe_command="cat > /dev/null; exit 3"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_reported_with_its_place(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "part"
    with pytest.raises(InputMissingError, match="part"):
        clicks_of(dataset_of(kind, path))
    without_files = fluid.DatasetFactory().create_dataset(kind)
    without_files.set_use_var(variables())
    with pytest.raises(ValueError, match="no files are listed; call set_filelist"):
        clicks_of(without_files)
    path.write_text("2 0 0 0 1 1\n")
    with pytest.raises(BadLineError, match="part, line 1, column 7: .*a slot may not be empty"):
        clicks_of(dataset_of(kind, path))
    path.write_text("3 0 0 0 1 1 1 1\n2 0 0 1 1 1 7\n")
    with pytest.raises(BadLineError, match="line 1, column 1: .*'dense'.*the count 2"):
        clicks_of(dataset_of(kind, path))
    lenient = dataset_of(kind, path)
    lenient.set_max_bad_lines(1, tmp_path / "bad.tsv")
    assert clicks_of(lenient) == [[7]]
    assert "part\t1\t1\t" in (tmp_path / "bad.tsv").read_text()
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_filelist([str(path)])
    with pytest.raises(ValueError, match="call set_use_var first"):
        feeds_of(dataset)
    with pytest.raises(ValueError, match="put it in a list"):
        dataset.set_filelist(str(path))


def test_streams_cannot_be_shuffled() -> None:
    for kind in ("QueueDataset", "FileInstantDataset"):
        dataset = fluid.DatasetFactory().create_dataset(kind)
        with pytest.raises(NotImplementedError, match="use InMemoryDataset"):
            dataset.local_shuffle()
        with pytest.raises(NotImplementedError, match="use InMemoryDataset"):
            dataset.global_shuffle()
        dataset.set_fea_eval(100)
        with pytest.raises(ValueError, match="use InMemoryDataset"):
            dataset.slots_shuffle(["ads"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_resumes_after_a_stop(kind: str, tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "part", range(20))
    first = dataset_of(kind, path, batch_size=3)
    wanted = clicks_of(first)
    batches = iter(first)
    given = [next(batches)["click"][:, 0].tolist() for _ in range(2)]
    again = dataset_of(kind, path, batch_size=3)
    if kind == "InMemoryDataset":
        again.load_into_memory()
    again.load_state_dict(first.state_dict())
    assert given + [feed["click"][:, 0].tolist() for feed in again] == wanted
    assert [feed["click"][:, 0].tolist() for feed in again] == wanted


def test_the_configuration_is_reported_as_protobuf_does() -> None:
    dataset = dataset_of("InMemoryDataset", thread=3, pipe_command='awk "x"', batch_size=7)
    dataset.set_rank_offset("rank")
    dataset.set_pv_batch_size(4)
    assert dataset.desc().splitlines() == [
        'name: "MultiSlotInMemoryDataFeed"',
        "batch_size: 7",
        "multi_slot_desc {",
        "  slots {",
        '    name: "dense"',
        '    type: "float"',
        "    is_dense: true",
        "    is_used: true",
        "    shape: -1",
        "    shape: 2",
        "  }",
        "  slots {",
        '    name: "ads"',
        '    type: "uint64"',
        "    is_dense: false",
        "    is_used: true",
        "  }",
        "  slots {",
        '    name: "click"',
        '    type: "uint64"',
        "    is_dense: true",
        "    is_used: true",
        "    shape: -1",
        "    shape: 1",
        "  }",
        "}",
        r'pipe_command: "awk \"x\""',
        "thread_num: 3",
        'rank_offset: "rank"',
        "pv_batch_size: 4",
    ]


def binary(click: int, *ads: int) -> bytes:
    ids = struct.pack(f"<H{len(ads)}Q", len(ads), *ads)
    return struct.pack("<Hff", 2, 0.5, 0.25) + ids + struct.pack("<HQ", 1, click)


def test_binary_files_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"".join(binary(n, *range(n % 3 + 1)) for n in range(50)))
    dataset = dataset_of("FileInstantDataset", path, batch_size=20)
    feeds = feeds_of(dataset)
    assert [feed["click"][:, 0].tolist() for feed in feeds] == [
        list(range(20)),
        list(range(20, 40)),
        list(range(40, 50)),
    ]
    assert feeds[0]["ads"][0][:6, 0].tolist() == [0, 0, 1, 0, 1, 2]
    assert feeds[0]["dense"][0].tolist() == [0.5, 0.25]
    batches = iter(dataset)
    next(batches)
    again = dataset_of("FileInstantDataset", path, batch_size=20)
    again.load_state_dict(dataset.state_dict())
    assert [feed["click"][0, 0] for feed in again] == [20, 40]


def test_binary_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(binary(1, 7) + binary(2, 8)[:-3])
    with pytest.raises(InputFileError, match="ends after .* bytes of record 2"):
        feeds_of(dataset_of("FileInstantDataset", path))
    path.write_bytes(binary(1, 7) + binary(2))
    with pytest.raises(InputFileError, match="record 2: .*slot 'ads' has the count 0"):
        feeds_of(dataset_of("FileInstantDataset", path))
    with pytest.raises(ValueError, match="cannot use a pipe or shell command"):
        feeds_of(dataset_of("FileInstantDataset", path, pipe_command="sort"))


@pytest.mark.parametrize("kind", KINDS)
def test_remote_files_come_through_hadoop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop = tmp_path / "bin" / "hadoop"
    hadoop.parent.mkdir()
    hadoop.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho "2 0 0 1 9 1 5"\n')
    hadoop.chmod(0o755)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    local = write_clicks(tmp_path / "local", range(1))
    dataset = dataset_of(kind, local)
    dataset.set_filelist([str(local), "hdfs:/data/part-1", "afs:/data/part-2.gz"])
    dataset.set_hdfs_config("hdfs://node:54310", "me,secret")
    dataset.set_pipe_command("sed 's/9/10/'")
    assert clicks_of(dataset) == [[0, 5, 5]]
    options = "fs -D fs.default.name=hdfs://node:54310 -D hadoop.job.ugi=me,secret"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{options} -cat hdfs:/data/part-1",
        f"{options} -text afs:/data/part-2.gz",
    ]
    dataset.set_download_cmd("echo 2 0 0 1 9 1 8; echo 1>&2")
    assert clicks_of(dataset) == [[0, 8, 8]]
    dataset.set_download_cmd("false")
    with pytest.raises(PipeCommandError, match="hdfs:/data/part-1: .*exit code 1"):
        clicks_of(dataset)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_has_ended_has_nothing_left(kind: str, tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "part", range(20))
    first = dataset_of(kind, path, batch_size=3)
    wanted = clicks_of(first)
    batches = first.batches(label="click")
    assert len(list(batches)) == 7
    again = dataset_of(kind, path, batch_size=3)
    if kind == "InMemoryDataset":
        again.load_into_memory()
    for state in (batches.finished_state_dict(), first.finished_state_dict()):
        again.batches(label="click").load_state_dict(state)
        assert list(again) == []
        assert [feed["click"][:, 0].tolist() for feed in again] == wanted
    assert batches.stats().records == first.stats().records == 40


@pytest.mark.parametrize("workers", [1, 3])
def test_streamed_files_are_taken_up_by_another_number_of_workers(
    workers: int, tmp_path: Path
) -> None:
    files = [write_clicks(tmp_path / f"part-{n}", range(10 * n, 10 * n + 10)) for n in range(6)]
    seen, states = [], []
    for part, taken in ((files[:3], 4), (files[3:], 15)):
        batches = dataset_of("QueueDataset", *part, batch_size=2).batches(label="click")
        one = iter(batches)
        seen += [n for _, clicks in islice(one, taken) for n in clicks[:, 0].tolist()]
        states.append(batches.state_dict())
        one.close()
    for index in range(workers):
        mine = split_files(files, index, workers)
        batches = dataset_of("QueueDataset", *mine, batch_size=2).batches(label="click")
        batches.load_state_dicts(states)
        seen += [n for _, clicks in batches for n in clicks[:, 0].tolist()]
    assert sorted(seen) == list(range(60))
