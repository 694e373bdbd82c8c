"""Ways of writing and placing programs that scripts ask about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsefleet.fluid.call_site import ProgramError, call_site

__all__ = ["device_guard", "disable_dygraph", "enable_dygraph", "in_dygraph_mode"]


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Operators within are for "cpu" or "gpu"; all of them run where the Executor is.

    >>> with device_guard("cpu"):
    ...     pass
    """
    kind = (device or "").partition(":")[0]
    if kind not in ("", "cpu", "gpu"):
        raise ProgramError.at(
            call_site(), "device_guard", f"device must be 'cpu', 'gpu' or None, got {device!r}"
        )
    yield


def in_dygraph_mode() -> bool:
    """Whether layers compute at once: they never do, they describe programs."""
    return False


def disable_dygraph() -> None:
    """Layers describe programs, as they always do here."""


def enable_dygraph(place: object = None) -> None:
    """Refuses: what computes at once is PyTorch itself."""
    del place
    raise ProgramError.at(
        call_site(),
        "enable_dygraph",
        "layers that compute at once are not here: write that model as a torch.nn.Module",
    )
