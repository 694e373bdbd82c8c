"""Batches on their way to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import cuda

from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.places import CUDAPinnedPlace, CUDAPlace, Place

__all__ = ["Copying", "DeviceCopies"]


@dataclass(frozen=True, slots=True)
class Copying:
    """A batch that is being copied."""

    columns: list[LoDTensor]
    copied: Any = None
    """The event of a GPU's stream after which it is there; None if it is already."""

    def finish(self) -> list[LoDTensor]:
        """The batch, for what the calling thread asks of the GPU from now on. Does not wait."""
        if self.copied is not None:
            stream = cuda.current_stream(self.columns[0].tensor.device)
            stream.wait_event(self.copied)
            for column in self.columns:
                column.tensor.record_stream(stream)  # its memory is not given away before
        return self.columns


class DeviceCopies:
    """Copies batches to a place: to a GPU on a stream of its own, beside what is computed there."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stream: Any = None

    def begin(self, columns: Sequence[LoDTensor]) -> Copying:
        """Starts to copy a batch; tensors in plain memory are there when it returns."""
        place = self._place
        if place.is_cpu or not isinstance(place, CUDAPlace) or not columns:
            return Copying([column.to_place(place) for column in columns])
        if self._stream is None:
            self._stream = cuda.Stream(device=place.device_id)  # type: ignore[no-untyped-call]
        with cuda.stream(self._stream):
            pinned = [column.to_place(CUDAPinnedPlace()) for column in columns]
            placed = [column.to_place(place) for column in pinned]
            return Copying(placed, self._stream.record_event())
