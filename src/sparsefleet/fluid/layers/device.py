"""Places of replicas, by the name of Fluid's module."""

from __future__ import annotations

from sparsefleet.fluid.places import Place, cpu_places, cuda_places

__all__ = ["get_places"]


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[Place]:
    """The places of so many replicas, "CPU" or "CUDA"; as many as CPU_NUM says by default."""
    if (device_type or "CPU").upper() == "CPU":
        return list(cpu_places(device_count))
    return list(cuda_places(None if device_count is None else range(device_count)))
