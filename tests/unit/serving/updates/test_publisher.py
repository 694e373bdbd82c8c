"""A publisher when the log's replies are lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.small_export import exported_pairs

from sparsefleet.errors import PublishError
from sparsefleet.serving.updates import UpdateName, UpdateReader
from sparsefleet.serving.updates.publisher import Chunks, OpenedExport, PublishConfig, Publisher
from sparsefleet.serving.updates.update_log import FolderLog
from sparsefleet.store.arrays import Floats, Keys


class Training:
    """A source whose next change affects a chosen key."""

    key = 0

    def __init__(self, export: OpenedExport) -> None:
        self._tables = export.tables

    def has_lost_track(self) -> bool:
        return False

    def take_changes(self) -> dict[str, list[tuple[Keys, Floats]]]:
        return {"ads": [(np.array([self.key], np.uint64), np.full((1, 4), self.key, np.float32))]}

    def open_all(self) -> dict[str, Chunks]:
        return {
            name: iter([(table.keys, table.find(table.keys)[0])])
            for name, table in self._tables.items()
        }

    def dense(self) -> dict[str, np.ndarray]:
        return {"head.bias": np.zeros(1, np.float32)}

    def close(self) -> None:
        pass


def test_an_update_that_was_written_though_the_answer_was_lost_is_continued_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, manifest = exported_pairs()
    export = OpenedExport.open(directory)
    training = Training(export)
    publisher = Publisher(export, training, PublishConfig(model=directory, target=tmp_path))
    reader = UpdateReader(FolderLog(tmp_path, manifest.digest), manifest.digest, manifest.tables)
    append = FolderLog.append

    def publish(key: int) -> None:
        training.key = key
        publisher.take()
        publisher.write()

    def lose_the_answer(log: FolderLog, name: UpdateName, raw: bytes) -> None:
        append(log, name, raw)
        raise PublishError("no answer")

    publish(1)
    with monkeypatch.context() as patched:
        patched.setattr(FolderLog, "append", lose_the_answer)
        with pytest.raises(PublishError, match="no answer"):
            publish(2)
    publish(3)
    reader.catch_up()
    assert reader.problem is None
    assert reader.snapshot is not None
    keys = np.array([2, 3], np.uint64)
    rows, known = np.zeros((2, 4), np.float32), np.zeros(2, np.bool_)
    reader.snapshot.rows.table("ads").find(keys, rows, known)
    np.testing.assert_array_equal(rows[:, 0], [2, 3])
    publisher.close()
