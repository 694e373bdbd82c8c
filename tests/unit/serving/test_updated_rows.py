"""A service that follows updates: every prediction is consistent with one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.small_export import exported_pairs, pairs

from sparsefleet import Predictor
from sparsefleet.errors import ConfigError
from sparsefleet.serving import FileRows
from sparsefleet.serving.export.quantization import EncodedRows
from sparsefleet.serving.row_stores import UpdatedRows
from sparsefleet.serving.updates import TableChanges, Update, UpdateLog, open_log

WAIT_S = 60.0
NOTHING = np.empty(0, np.uint64)


def update(number: int, **dense: np.ndarray) -> Update:
    """Return an update that sets the row of ad 7 to `number`; predictions show how far the dense
    part differs.
    """
    rows = EncodedRows(np.full((1, 4), number, np.float32), None)
    weight = np.zeros((1, 7), np.float32)
    weight[0, 0] = 1.0
    return Update(
        base=exported_pairs()[1].digest,
        sequence=number,
        snapshot_id=f"{number:016x}",
        previous=None if number == 1 else f"{number - 1:016x}",
        made=float(number),
        tables={"ads": TableChanges(np.array([7], np.uint64), rows, NOTHING)},
        dense=dense or {"head.weight": weight, "head.bias": np.array([-number], np.float32)},
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    made = open_log(tmp_path, exported_pairs()[1].digest)
    made.hold()
    yield made
    made.close()


@pytest.fixture
def rows(tmp_path: Path, log: UpdateLog) -> Iterator[UpdatedRows]:
    directory, manifest = exported_pairs()
    made = UpdatedRows(FileRows(directory), tmp_path, manifest=manifest)
    yield made
    made.close()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.005)


def test_rows_and_dense_parameters_are_of_one_moment_while_updates_come(
    rows: UpdatedRows, log: UpdateLog
) -> None:
    predictor = Predictor(exported_pairs()[0], rows=rows)
    batch = pairs([7] * 5, range(5))
    log.append(*update(1).to_bytes())
    wait_for(lambda: rows.sequence == 1)
    over = threading.Event()

    def predict(_: int) -> int:
        count = 0
        while not over.is_set():
            assert predictor.predict(batch).tolist() == [0.0] * 5
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(predict, index) for index in range(3)]
        try:
            for number in range(2, 8):
                log.append(*update(number).to_bytes())
                wait_for(lambda number=number: rows.sequence == number)
        finally:
            over.set()
        assert all(future.result(WAIT_S) for future in running)
    assert rows.freshness() == 7.0


def test_a_moment_that_was_taken_stays_as_it_was(rows: UpdatedRows, log: UpdateLog) -> None:
    before = rows.tables()
    log.append(*update(1).to_bytes())
    wait_for(lambda: rows.sequence == 1)
    after, ids = rows.tables(), np.array([7])
    assert after["ads"].look_up(ids).ravel().tolist() == [1.0] * 4
    np.testing.assert_array_equal(
        before["ads"].look_up(ids), FileRows(exported_pairs()[0]).tables()["ads"].look_up(ids)
    )
    assert rows.memory_bytes > 0


def test_updates_of_another_dense_part_are_not_active(rows: UpdatedRows, log: UpdateLog) -> None:
    predictor = Predictor(exported_pairs()[0], rows=rows)
    log.append(*update(1, **{"head.weight": np.zeros((1, 3), np.float32)}).to_bytes())
    wait_for(lambda: rows.problem is not None)
    assert "dense parameters belong to a different model" in str(rows.problem)
    assert rows.sequence == 0
    predictor.check_golden()


def test_rows_of_another_export_are_refused(tmp_path: Path) -> None:
    other = FileRows(exported_pairs(seed=1)[0])
    with pytest.raises(ConfigError, match="the rows belong to the export"):
        UpdatedRows(other, tmp_path, manifest=exported_pairs()[1])
