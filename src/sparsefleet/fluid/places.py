"""Where tensors live, in Fluid's words. A place is a description: it needs no such device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    "is_compiled_with_cuda",
    "place_tensor",
    "places_of",
]


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
    """The memory of a GPU."""

    device_id: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.device_id, int) or self.device_id < 0:
            raise ConfigError(f"CUDAPlace: device_id must be an int >= 0, got {self.device_id!r}")

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
    """The GPUs named, or all that torch sees."""
    if device_ids is None:
        import torch

        device_ids = range(torch.cuda.device_count())
    return [CUDAPlace(index) for index in device_ids]


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
        return tensor.to(f"cuda:{place.device_id}", non_blocking=tensor.is_pinned())
    if isinstance(place, CUDAPinnedPlace):
        return tensor if tensor.is_pinned() else tensor.pin_memory()
    return tensor.cpu()
