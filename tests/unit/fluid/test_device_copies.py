"""Batches are copied to their device while the previous batch is computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.fluid.feeding import loader as device_copies
from sparsefleet.fluid.feeding.loader import DeviceCopies

X = fluid.Variable("x", [None, 2], "float32")
WAIT_S = 30.0


class FarPlace(fluid.core.Place):
    """A device that does not exist."""


class Copies:
    """Records copies to FarPlace in order, and lets others wait for one."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._count = threading.Condition()
        self._begun = 0

    def note(self, what: str) -> None:
        self.events.append(what)

    def copy(self, tensor: torch.Tensor, place: fluid.core.Place) -> torch.Tensor:
        if isinstance(place, FarPlace):
            with self._count:
                self.note(f"copy {int(tensor[0, 0])}")
                self._begun += 1
                self._count.notify_all()
        return tensor

    def wait_for(self, count: int) -> bool:
        with self._count:
            return self._count.wait_for(lambda: self._begun >= count, WAIT_S)


def batches() -> Iterator[list[Any]]:
    for number in range(4):
        yield [np.full((3, 2), number, "float32")]


@pytest.mark.parametrize("double", [True, False])
def test_the_next_batch_is_copied_while_one_is_computed_on(
    double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies()
    monkeypatch.setattr("sparsefleet.fluid.lod_tensor.place_tensor", copies.copy)
    loader = fluid.io.DataLoader.from_generator([X], capacity=2, use_double_buffer=double)
    loader.set_batch_generator(batches, places=FarPlace())
    for number, batch in enumerate(loader):
        copies.note(f"compute {number}")
        assert batch["x"].numpy()[0, 0] == number
        if double and number < 3:
            assert copies.wait_for(number + 2)
        copies.note(f"done {number}")
    order = copies.events
    assert [event for event in order if event.startswith("copy")] == [f"copy {n}" for n in range(4)]
    for number in range(3):
        is_ahead = order.index(f"copy {number + 1}") < order.index(f"done {number}")
        assert is_ahead == double


class FakeStream:
    """The part of a GPU stream that is used."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


class FakeCuda:
    """The part of torch.cuda that is used."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def Stream(self, device: int) -> FakeStream:  # noqa: N802
        self.log.append(f"stream on {device}")
        return FakeStream(self.log, "copies")

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.log.append(f"begin {stream.name}")
        yield
        self.log.append(f"end {stream.name}")

    def current_stream(self, _: torch.device) -> FakeStream:
        return FakeStream(self.log, "compute")


def test_a_gpu_copies_on_a_stream_of_its_own_which_computing_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(device_copies, "cuda", cuda)
    monkeypatch.setattr(fluid.CUDAPlace, "is_cpu", False)

    def copy(tensor: torch.Tensor, place: fluid.core.Place) -> torch.Tensor:
        cuda.log.append(f"to {type(place).__name__}")
        return tensor

    monkeypatch.setattr("sparsefleet.fluid.lod_tensor.place_tensor", copy)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda _, stream: cuda.log.append(f"{stream.name} uses it"),
    )
    copies = DeviceCopies(fluid.CUDAPlace(1))
    column = fluid.create_lod_tensor(np.ones((2, 1), "float32"), [[2]], fluid.CPUPlace())
    cuda.log.clear()
    copying = copies.begin([column])
    assert cuda.log == [
        "stream on 1",
        "begin copies",
        "to CUDAPinnedPlace",
        "to CUDAPlace",
        "copies records",
        "end copies",
    ]
    cuda.log.clear()
    assert copying.finish()[0].lod() == [[0, 2]]
    assert cuda.log == ["compute waits for event of copies", "compute uses it"]
