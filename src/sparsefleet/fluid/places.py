"""Where tensors live, in Fluid's words. Where there is no GPU, its places are the CPU's memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.runtime_configs import cpu_num

if TYPE_CHECKING:
    import torch

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "Place",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "device_of",
    "is_compiled_with_cuda",
    "place_tensor",
    "places_of",
]

_log = logging.getLogger("sparsefleet.fluid")
_SELECTED_GPUS = "FLAGS_selected_gpus"


class Place:
    """Any of the places."""

    @property
    def is_cpu(self) -> bool:
        """Whether a tensor of plain memory is there already."""
        return False


@dataclass(frozen=True)
class CPUPlace(Place):
    """Plain memory.

    >>> CPUPlace() == CPUPlace()
    True
    """

    @property
    def is_cpu(self) -> bool:
        return True


@dataclass(frozen=True)
class CUDAPlace(Place):
    """The memory of a GPU. Where there is none at all it is plain memory, which is said once.

    Raises ConfigError then if SPARSEFLEET_REQUIRE_CUDA is 1.
    """

    device_id: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.device_id, int) or self.device_id < 0:
            raise ConfigError(f"CUDAPlace: device_id must be an int >= 0, got {self.device_id!r}")
        if not is_compiled_with_cuda():
            device_of(self)

    @property
    def is_cpu(self) -> bool:
        return device_of(self).type == "cpu"

    def get_device_id(self) -> int:
        return self.device_id


@dataclass(frozen=True)
class CUDAPinnedPlace(Place):
    """Memory that a GPU can copy from by itself."""


def is_compiled_with_cuda() -> bool:
    """Whether this torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """One place a replica; by default as many as CPU_NUM says, else 1.

    >>> len(cpu_places(2))
    2
    """
    return [CPUPlace()] * (cpu_num() if device_count is None else device_count)


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """As `cpu_places`."""
    return [CUDAPinnedPlace()] * (cpu_num() if device_count is None else device_count)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """The GPUs named, else those of FLAGS_selected_gpus, else all; where there is none, one."""
    if device_ids is None:
        import torch

        selected = os.environ.get(_SELECTED_GPUS, "").strip()
        if selected:
            device_ids = [int(text) for text in selected.split(",")]
        else:
            device_ids = range(max(1, torch.cuda.device_count()))
    return [CUDAPlace(index) for index in device_ids]


def device_of(place: Place) -> torch.device:
    """The device of torch that `place` means."""
    from sparsefleet.collective.device_choice import choose_device

    if not isinstance(place, CUDAPlace):
        return choose_device(wanted="cpu")
    device = choose_device(wanted=f"cuda:{place.device_id}", falls_back=True)
    if device.type == "cpu":
        _say_that_there_is_no_gpu()
    return device


@cache
def _say_that_there_is_no_gpu() -> None:
    _log.warning(
        "CUDAPlace: this torch sees no GPU, the CPU is used instead; SPARSEFLEET_REQUIRE_CUDA=1 "
        "makes that an error"
    )


def places_of(places: Place | Iterable[Place]) -> list[Place]:
    """One place or several as a list, none of it anything else."""
    found = [places] if isinstance(places, Place) else list(places)
    for place in found:
        if not isinstance(place, Place):
            raise TypeError(f"a place is fluid.CPUPlace() or such, got {place!r}")
    if not found:
        raise ConfigError("places: an empty list, wanted at least one place")
    return found


def place_tensor(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor where `place` is: itself if it is there, else a copy."""
    if isinstance(place, CUDAPlace):
        return tensor.to(device_of(place), non_blocking=tensor.is_pinned())
    if isinstance(place, CUDAPinnedPlace):
        return tensor if tensor.is_pinned() else tensor.pin_memory()
    return tensor.cpu()
