"""Updates are read in order and completely: missing or damaged ones are named and waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import CorruptFileError, PublishError
from sparsefleet.serving.export.manifest import ExportedTable, InitialValues
from sparsefleet.serving.export.quantization import EncodedRows
from sparsefleet.serving.updates import TableChanges, Update, UpdateName, UpdateReader
from sparsefleet.serving.updates.update_log import FolderLog

BASE = "0123456789abcdef"
ADS = ExportedTable(
    name="ads",
    dim=2,
    rows=0,
    format="float32",
    file="rows.arrow",
    initial=InitialValues(kind="constant", a=0.0, b=0.0, seed=0),
    largest_error=0.0,
    mean_error=0.0,
)


def update(number: int, *, whole: bool = False, log: str = "a", **options: Any) -> Update:
    """Sets the row of each key up to `number`, or of `number` alone, to `number`."""
    keys = np.arange(1 if whole else number, number + 1).astype(np.uint64)
    rows = EncodedRows(np.repeat(keys[:, None], 2, axis=1).astype(np.float32), None)
    settings: dict[str, Any] = {
        "base": BASE,
        "sequence": number,
        "snapshot_id": f"{log}{number:015x}",
        "previous": None if whole else f"{log}{number - 1:015x}",
        "made": 100.0 * (log != "a") + number,
        "tables": {"ads": TableChanges(keys, rows, keys[:0])},
        "dense": {"head.bias": np.array([number], np.float32)},
    }
    return Update(**{**settings, **options})


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    made = FolderLog(tmp_path, BASE)
    made.hold()
    return made


def reader_of(log: FolderLog) -> UpdateReader:
    return UpdateReader(log, BASE, [ADS])


def publish(log: FolderLog, *updates: Update) -> list[UpdateName]:
    names = []
    for each in updates:
        name, raw = each.to_bytes()
        log.append(name, raw)
        names.append(name)
    return names


def keys_of(reader: UpdateReader) -> list[int]:
    assert reader.snapshot is not None
    keys: list[int] = reader.snapshot.rows.changes()["ads"].keys.tolist()
    assert reader.snapshot.dense.arrays["head.bias"] == reader.snapshot.sequence
    return keys


def test_a_log_without_updates_is_the_export(log: FolderLog) -> None:
    reader = reader_of(log)
    assert not reader.catch_up()
    assert (reader.snapshot, reader.problem) == (None, None)


def test_updates_are_applied_in_the_order_of_their_numbers_whenever_they_come(
    log: FolderLog,
) -> None:
    reader = reader_of(log)
    publish(log, update(3), update(1, whole=True))
    assert reader.catch_up()
    assert keys_of(reader) == [1]
    assert "update 2 is missing" in str(reader.problem)
    publish(log, update(2))
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == ([1, 2, 3], None)
    assert not reader.catch_up()


def test_a_gap_is_named_and_ended_by_a_whole_update(log: FolderLog) -> None:
    reader = reader_of(log)
    publish(log, update(1, whole=True), update(2))
    reader.catch_up()
    publish(log, update(4), update(5))
    assert not reader.catch_up()
    assert keys_of(reader) == [1, 2]
    assert "update 3 is missing" in str(reader.problem)
    publish(log, update(4, whole=True))
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == ([1, 2, 3, 4, 5], None)


def test_a_reader_that_starts_in_the_middle_begins_with_the_newest_whole(log: FolderLog) -> None:
    publish(log, update(7, whole=True), update(7), update(8), update(9))
    reader = reader_of(log)
    reader.catch_up()
    assert keys_of(reader) == list(range(1, 10))


def test_deltas_without_a_whole_update_wait_for_one(log: FolderLog) -> None:
    publish(log, update(8))
    reader = reader_of(log)
    assert not reader.catch_up()
    assert "is missing" in str(reader.problem)


def test_a_reader_far_behind_continues_with_deltas_as_long_as_they_are_there(
    log: FolderLog,
) -> None:
    names = publish(log, update(1, whole=True), update(2), update(3))
    reader = reader_of(log)
    reader.catch_up()
    publish(log, *(update(number) for number in range(4, 8)), update(7, whole=True), update(8))
    log.remove([*names, *(name for name in log.names() if name.sequence < 7)])
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == (list(range(1, 9)), None)


@pytest.mark.parametrize("newer", [1, 2, 3])
def test_a_log_that_was_started_over_is_followed_and_never_mixed_with_the_old(
    newer: int, log: FolderLog
) -> None:
    old = publish(log, update(1, whole=True), update(2))
    reader = reader_of(log)
    reader.catch_up()
    log.remove(old)
    removed = TableChanges(
        np.array([50], np.uint64),
        EncodedRows(np.ones((1, 2), np.float32), None),
        np.empty(0, np.uint64),
    )
    publish(log, update(1, whole=True, log="b", tables={"ads": removed}))
    publish(log, *(update(number, log="b") for number in range(2, newer + 1)))
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == ([*range(2, newer + 1), 50], None)


def test_a_damaged_update_is_not_applied_and_the_next_whole_one_helps(log: FolderLog) -> None:
    publish(log, update(1, whole=True))
    reader = reader_of(log)
    reader.catch_up()
    [name] = publish(log, update(2))
    path = Path(log.where) / str(name)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not reader.catch_up()
    assert "update 2 has changed since it was written" in str(reader.problem)
    assert keys_of(reader) == [1]
    publish(log, update(3), update(3, whole=True))
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == ([1, 2, 3], None)


def test_a_whole_update_helps_also_after_the_clock_of_the_trainer_was_set_back(
    log: FolderLog,
) -> None:
    publish(log, update(1, whole=True, made=5000.0))
    reader = reader_of(log)
    reader.catch_up()
    [name] = publish(log, update(2, made=1400.0))
    (Path(log.where) / str(name)).write_bytes(b"x")
    assert not reader.catch_up()
    publish(log, update(3, made=1401.0), update(3, whole=True, made=1401.0))
    assert reader.catch_up()
    assert (keys_of(reader), reader.problem) == ([1, 2, 3], None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "f" * 16}, "expected an update of 0123456789abcdef"),
        (
            {
                "tables": {
                    "ads": TableChanges(
                        np.array([1], np.uint64),
                        EncodedRows(np.ones((1, 3), np.float32), None),
                        np.empty(0, np.uint64),
                    )
                }
            },
            "float32 rows of width 3, but the export has float32 rows of width 2",
        ),
    ],
    ids=["another export", "another width"],
)
def test_updates_that_do_not_fit_the_export_are_refused(
    options: dict[str, Any], message: str, log: FolderLog
) -> None:
    publish(log, update(1, whole=True, **options))
    reader = reader_of(log)
    assert not reader.catch_up()
    assert reader.snapshot is None
    assert message in str(reader.problem)


def test_what_an_engine_cannot_take_is_not_active(log: FolderLog) -> None:
    publish(log, update(1, whole=True))
    reader = reader_of(log)

    def refuse(_: object) -> None:
        raise CorruptFileError("no")

    with pytest.raises(CorruptFileError):
        reader.catch_up(refuse)
    assert reader.snapshot is None


def test_bytes_that_are_not_an_update_are_named() -> None:
    name, raw = update(1).to_bytes()
    assert Update.from_bytes(name, raw, "here").sequence == 1
    for broken in (b"", raw[:20], raw[:-4], b"\xff" * 100):
        with pytest.raises(CorruptFileError, match="here"):
            Update.from_bytes(name, broken, "here")


def test_what_a_killed_publisher_left_goes_with_the_next(tmp_path: Path) -> None:
    folder = tmp_path / BASE
    folder.mkdir()
    left = folder / ".delta-000000000001-x.tmp"
    left.write_bytes(b"half")
    log = FolderLog(tmp_path, BASE)
    assert log.names() == []
    with pytest.raises(PublishError, match="call hold\\(\\) before"):
        log.append(*update(1).to_bytes())
    log.hold()
    assert not left.exists()
    with pytest.raises(PublishError, match="another trainer is publishing"):
        FolderLog(tmp_path, BASE).hold()
    log.close()
    FolderLog(tmp_path, BASE).hold()
