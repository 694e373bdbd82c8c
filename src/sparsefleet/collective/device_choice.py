"""On which device a rank computes, and by what its tensors travel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["backend_of", "choose_device", "is_cuda_required"]


def choose_device(
    index: int = 0,
    *,
    count: int = 1,
    wanted: str | torch.device | None = None,
    falls_back: bool = False,
) -> torch.device:
    """The device of process `index` of the `count` that train on this machine.

    A GPU each if this torch sees as many, else the CPU for all of them: two processes cannot
    share a GPU for collectives. SPARSEFLEET_REQUIRE_CUDA=1 turns that fallback into a
    ConfigError. `wanted` ("cpu", "cuda:1") is taken instead, if it is there; with `falls_back`
    the CPU where there is no GPU at all.

    >>> choose_device(wanted="cpu")
    device(type='cpu')
    """
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted is not None:
        device = torch.device(wanted)
        if device.type != "cuda" or (device.index or 0) < found:
            return device
        if found or not falls_back:
            raise ConfigError(f"device {device} is wanted, but this torch sees {_gpus(found)}")
    elif found >= count:
        return torch.device("cuda", index)
    if is_cuda_required():
        raise ConfigError(
            f"SPARSEFLEET_REQUIRE_CUDA is set, but this torch sees {_gpus(found)} for {count} "
            f"process{'es' if count > 1 else ''} of this machine: unset it to train on the CPU"
        )
    return torch.device("cpu")


def backend_of(device: torch.device) -> str:
    """What torch.distributed is to use for tensors of that device, and for those of the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def is_cuda_required() -> bool:
    """Whether the user wants an error rather than the CPU where there is no GPU."""
    text = os.environ.get("SPARSEFLEET_REQUIRE_CUDA", "").strip()
    if text not in ("", "0", "1"):
        raise ConfigError(f"SPARSEFLEET_REQUIRE_CUDA must be 0 or 1, got {text!r}")
    return text == "1"


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count != 1 else ''}"
