"""Fluid's places, where tensors live. Without a GPU, GPU places refer to CPU memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet.settings import cpu_num

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
    """Base class for all places."""

    @property
    def is_cpu(self) -> bool:
        """Return whether this place is the CPU, so that a CPU tensor need not be copied."""
        return False

    # Names from Fluid's native class that programs call.

    def _equals(self, other: Place) -> bool:
        return self == other

    def _type(self) -> int:
        return ("CUDAPlace", "CPUPlace", "CUDAPinnedPlace").index(type(self).__name__)


@dataclass(frozen=True)
class CPUPlace(Place):
    """The CPU's memory.

    >>> CPUPlace() == CPUPlace()
    True
    """

    @property
    def is_cpu(self) -> bool:
        return True


@dataclass(frozen=True)
class CUDAPlace(Place):
    """A GPU's memory. Without a GPU, the CPU's memory is used instead, with a single warning.

    Raises ConfigError instead if SPARSEFLEET_REQUIRE_CUDA is 1.
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
    """Page-locked memory, which a GPU can copy from directly."""


def is_compiled_with_cuda() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return one CPU place per replica.

    By default, there are CPU_NUM replicas, or 1 if CPU_NUM is not set.

    >>> len(cpu_places(2))
    2
    """
    return [CPUPlace()] * (cpu_num() if device_count is None else device_count)


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Return page-locked places, the same number as `cpu_places`."""
    return [CUDAPinnedPlace()] * (cpu_num() if device_count is None else device_count)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """Return places for the given GPUs. The default is FLAGS_selected_gpus or, if unset, all GPUs.

    Without GPUs, the default is a single place.
    """
    if device_ids is None:
        import torch

        selected = os.environ.get(_SELECTED_GPUS, "").strip()
        if selected:
            device_ids = [int(text) for text in selected.split(",")]
        else:
            device_ids = range(max(1, torch.cuda.device_count()))
    return [CUDAPlace(index) for index in device_ids]


def device_of(place: Place) -> torch.device:
    """Return the torch device for `place`."""
    from sparsefleet.collective.rendezvous import choose_device

    if not isinstance(place, CUDAPlace):
        return choose_device(wanted="cpu")
    device = choose_device(wanted=f"cuda:{place.device_id}", falls_back=True)
    if device.type == "cpu":
        _warn_no_gpu()
    return device


@cache
def _warn_no_gpu() -> None:
    _log.warning(
        "CUDAPlace: torch sees no GPU, using the CPU instead; set SPARSEFLEET_REQUIRE_CUDA=1 to "
        "make this an error"
    )


def places_of(places: Place | Iterable[Place]) -> list[Place]:
    """Return one or more places as a list. Raises TypeError for anything else."""
    found = [places] if isinstance(places, Place) else list(places)
    for place in found:
        if not isinstance(place, Place):
            raise TypeError(f"a place must be an object such as fluid.CPUPlace(), got {place!r}")
    if not found:
        raise ConfigError("places is empty, expected at least one place")
    return found


def place_tensor(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the tensor at `place`, copied unless it is already there."""
    if isinstance(place, CUDAPlace):
        return tensor.to(device_of(place), non_blocking=tensor.is_pinned())
    if isinstance(place, CUDAPinnedPlace) and is_compiled_with_cuda():
        return tensor if tensor.is_pinned() else tensor.pin_memory()
    return tensor.cpu()
