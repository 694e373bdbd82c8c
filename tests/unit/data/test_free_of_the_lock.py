"""Batches reach torch without a copy, and neither parsing nor waiting holds the GIL."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.unit.data.data_files import ONE_ID, lines_of, write_ids

from sparsefleet import _core
from sparsefleet.data import CriteoTsv, MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.train.module_workload import as_batch

WAIT_S = 60.0


@pytest.fixture
def no_preemption() -> Iterator[None]:
    """Make a thread keep the GIL until it releases it itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_tensors_of_a_batch_lie_where_the_parser_wrote(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 17 18 2 0.5 0.25 1 1\n1 99 2 1 2 1 0\n")
    format_ = MultiSlot(Slot("ads"), Slot("dense", "float", (2,)), Slot("click", "float", ()))
    with iter(Reader(path, format_, 2, label="click")) as batches:
        inputs, click = raw = next(batches)
    batch = as_batch(raw, 1, labelled=True)
    arrays = [inputs["ads"][0], inputs["ads"][1], inputs["dense"], click]
    tensors = [*batch.inputs["ads"], batch.inputs["dense"], batch.labels]
    for array, tensor in zip(arrays, tensors, strict=True):
        assert not array.flags.owndata
        assert isinstance(tensor, torch.Tensor)
        assert tensor.data_ptr() == address_of(array)
    assert batch.inputs["ads"][0].tolist() == [17, 18, 99]


def test_columns_of_a_batch_are_handed_over_not_copied() -> None:
    native = CriteoTsv().make_native()
    parser, filled = _core.RecordParser(native, 1 << 20), _core.ColumnBatch(native)
    line = "\t".join(["1", *["5"] * 13, *["68fd1e64"] * 26]).encode() + b"\n"
    parser.begin_file()
    parser.feed(line * 3)
    assert parser.parse(filled, 3) == 1
    first = [values for values, _ in filled.take()]
    parser.parse(filled, 3)
    second = [values for values, _ in filled.take()]
    assert [values.shape for values in first] == [(3, 1), (3, 13), (3, 26)]
    assert len({address_of(values) for values in first + second}) == 6  # later ones are elsewhere
    np.testing.assert_array_equal(first[0], 1.0)


@pytest.mark.usefixtures("no_preemption")
def test_others_run_while_a_consumer_waits_for_a_batch() -> None:
    queue: BatchQueue[str] = BatchQueue(1, 1)
    taken: list[str | None] = []
    consumer = threading.Thread(target=lambda: taken.append(queue.take(WAIT_S)))
    consumer.start()
    total = sum(range(100_000))  # this thread has the GIL again, although the other one is waiting
    assert queue.put(str(total))
    consumer.join(WAIT_S)
    assert taken == ["4999950000"]


@pytest.mark.usefixtures("no_preemption")
def test_others_run_while_a_command_has_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("not looked at\n")
    os.mkfifo(tmp_path / "pipe")
    config = ReaderConfig(pipe_command=["cat", str(tmp_path / "pipe")])
    taken: list[Any] = []
    reader = Reader(tmp_path / "part", ONE_ID, 2, config=config)
    consumer = threading.Thread(target=lambda: taken.extend(reader))
    consumer.start()
    with open(tmp_path / "pipe", "wb") as file:  # either side waits for the other to open it
        file.write(lines_of(range(3)).encode())
    consumer.join(WAIT_S)
    assert [batch["id"].tolist() for batch in taken] == [[0, 1], [2]]


@pytest.mark.usefixtures("no_preemption")
def test_others_run_while_lines_are_parsed(tmp_path: Path) -> None:
    text = write_ids(tmp_path / "ids", range(200_000)).read_bytes()
    native = ONE_ID.make_native()
    parser, filled = _core.RecordParser(native, 1 << 20), _core.ColumnBatch(native)
    ran = threading.Event()
    other = threading.Thread(target=ran.set)
    other.start()
    for _ in range(1000):  # nothing in this loop releases the GIL unless parsing does
        parser.begin_file()
        parser.feed(text)
        parser.parse(filled, 1 << 40)
        filled.take()
        if ran.is_set():
            break
    assert ran.is_set()
    other.join(WAIT_S)
