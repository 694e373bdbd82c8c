from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids, write_ids

from sparsefleet.data import Reader, ReaderConfig, merge_states
from sparsefleet.errors import ConfigError, InputFileError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Ids 0..59 over files of odd sizes, one of them empty, one compressed."""
    (tmp_path / "c.gz").write_bytes(gzip.compress(lines_of(range(30, 41)).encode()))
    return [
        write_ids(tmp_path / "a", range(17)),
        write_ids(tmp_path / "b", []),
        write_ids(tmp_path / "b2", range(17, 30)),
        tmp_path / "c.gz",
        write_ids(tmp_path / "d", range(41, 60)),
    ]


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as a checkpoint would store it."""
    copy: dict[str, Any] = json.loads(json.dumps(state))
    return copy


@pytest.mark.parametrize("stop", range(9))
def test_one_thread_resumes_with_the_very_batches(files: list[Path], stop: int) -> None:
    wanted = [batch["id"].tolist() for batch in Reader(files, ONE_ID, 7)]
    first = Reader(files, ONE_ID, 7)
    batches = iter(first)
    given = [next(batches)["id"].tolist() for _ in range(stop)]
    second = Reader(files, ONE_ID, 7)
    second.load_state_dict(saved(first.state_dict()))
    first.close()
    assert second.state_dict() == first.state_dict()
    assert given + [batch["id"].tolist() for batch in second] == wanted
    assert read_ids(second) == list(range(60)), "the pass after it is whole"


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_many_threads_resume_without_a_record_lost_or_doubled(
    files: list[Path], threads: int, stop: int
) -> None:
    first = Reader(files, ONE_ID, 7, threads=threads)
    batches = iter(first)
    ids: Counter[int] = Counter()
    for _ in range(stop):
        ids.update(next(batches)["id"].tolist())
    state = saved(first.state_dict())
    first.close()
    second = Reader(files, ONE_ID, 5, threads=2)
    second.load_state_dict(state)
    ids.update(read_ids(second))
    assert ids == Counter(range(60))


def test_bad_lines_before_the_place_are_not_met_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1\nbad\n1 2\n1 3\nworse\n1 4\n")
    config = ReaderConfig(max_bad_lines=2)
    first = Reader(tmp_path / "a", ONE_ID, 2, config=config)
    batches = iter(first)
    assert next(batches)["id"].tolist() == [1, 2]
    second = Reader(tmp_path / "a", ONE_ID, 2, config=config)
    second.load_state_dict(first.state_dict())
    first.close()
    assert read_ids(second) == [3, 4]
    assert second.stats().bad_lines == 1
    assert second.stats().lines == 3


def test_after_the_end_the_next_pass_is_whole(files: list[Path]) -> None:
    reader = Reader(files, ONE_ID, 7)
    everything = read_ids(reader)
    again = Reader(files, ONE_ID, 7)
    again.load_state_dict(reader.state_dict())
    assert read_ids(again) == everything


def test_a_worker_that_has_come_to_its_end_counts_until_all_have(files: list[Path]) -> None:
    workers = [Reader(files, ONE_ID, 7, worker_index=index, worker_num=2) for index in range(2)]
    everything = sorted(read_ids(Reader(files, ONE_ID, 7)))
    given = read_ids(workers[0])
    batches = iter(workers[1])
    given += next(batches)["id"].tolist()
    states = [worker.state_dict() for worker in workers]
    alone = Reader(files, ONE_ID, 7)
    alone.load_state_dict(merge_states(states))
    assert sorted(given + read_ids(alone)) == everything
    list(batches)
    alone.load_state_dict(merge_states([worker.state_dict() for worker in workers]))
    assert sorted(read_ids(alone)) == everything


def test_states_of_other_files_or_of_no_reader_are_refused(files: list[Path]) -> None:
    reader = Reader(files, ONE_ID, 7)
    batches = iter(reader)
    next(batches)
    state = reader.state_dict()
    reader.close()
    with pytest.raises(ConfigError, match="a, which is not one of this Reader's files"):
        Reader(files[1:], ONE_ID, 7).load_state_dict(state)
    with pytest.raises(ConfigError, match="expected a Reader state"):
        reader.load_state_dict({"version": 99})
    with pytest.raises(ConfigError, match="expected a Reader state"):
        reader.load_state_dict({"version": 1, "done": [], "lines": 5})


def test_a_file_that_has_become_shorter_is_an_error(files: list[Path]) -> None:
    reader = Reader(files, ONE_ID, 7)
    batches = iter(reader)
    next(batches)
    state = reader.state_dict()
    reader.close()
    write_ids(files[0], [1, 2])
    reader.load_state_dict(state)
    with pytest.raises(InputFileError, match="a: the file has 2 lines, but 7 had been read"):
        list(reader)


def test_states_of_version_1_are_still_understood(files: list[Path]) -> None:
    a, b = str(files[0]), str(files[2])
    reader = Reader(files, ONE_ID, 7)
    reader.load_state_dict({"version": 1, "done": [a, str(files[1])], "lines": {b: 5}})
    assert read_ids(reader) == list(range(22, 60))


def test_another_number_of_workers_resumes_from_the_states_of_all(files: list[Path]) -> None:
    ids: Counter[int] = Counter()
    states = []
    for index in range(2):
        reader = Reader(files, ONE_ID, 4, worker_index=index, worker_num=2)
        batches = iter(reader)
        for _ in range(3):
            ids.update(next(batches)["id"].tolist())
        states.append(reader.state_dict())
        reader.close()
    for index in range(3):
        again = Reader(files, ONE_ID, 5, worker_index=index, worker_num=3)
        again.load_state_dict(merge_states(states))
        ids.update(read_ids(again))
    assert ids == Counter(range(60))
