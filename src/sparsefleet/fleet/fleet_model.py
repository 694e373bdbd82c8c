"""The interfaces of a model bound to the fleet, and of the function that binds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim.lr_scheduler import LRScheduler
    from typing_extensions import Self

    from sparsefleet.fleet.fleet import Fleet
    from sparsefleet.fleet.meeting import Meeting
    from sparsefleet.modes import ModeConfig
    from sparsefleet.modes.mode import Mode
    from sparsefleet.optim import Optimizer
    from sparsefleet.serving.updates.publisher import PublishConfig, Publisher
    from sparsefleet.store import Store
    from sparsefleet.store.remote_store import WireDtype

    ScheduleLike = LRScheduler | Callable[[int], float]
    """A torch scheduler, or a function from the number of steps to a factor."""

__all__ = ["Binder", "FleetModel", "FleetStep", "StartedModel"]


class Binder(Protocol):
    """Binds a model to a fleet; see `engine.binding.bind_model`."""

    def __call__(
        self,
        fleet: Fleet,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Optimizer,
        mode: str | ModeConfig | None = None,
        *,
        threads: int = 1,
        schedule: ScheduleLike | None = None,
        track_dirty: bool = False,
        wire_dtype: WireDtype | None = None,
    ) -> FleetModel: ...


class FleetStep(Protocol):
    """A training step as a context manager; see `engine.Step`."""

    def backward(self, loss: Tensor) -> None: ...

    def skip(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StartedModel(Protocol):
    """A model that the fleet starts and finishes, and its parts while it is running."""

    model: nn.Module

    @property
    def is_started(self) -> bool: ...

    @property
    def store(self) -> Store: ...

    @property
    def mode(self) -> Mode: ...

    @property
    def meeting(self) -> Meeting: ...

    def start(self) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...

    def flush(self) -> None: ...

    def settle(self) -> None: ...

    def leave(self) -> None: ...

    def rejoin(self) -> None: ...


class FleetModel(StartedModel, Protocol):
    """A model whose life cycle follows the fleet; see `engine.DistributedModel`."""

    def step(self, *, batch: Any = None) -> FleetStep: ...

    def evaluating(self, *, batch: Any = None) -> AbstractContextManager[nn.Module]: ...

    def replicas(self, count: int) -> list[nn.Module]: ...

    def save(
        self, directory: str | os.PathLike[str], *, only: Callable[[str], bool] | None = None
    ) -> None: ...

    def load(
        self, directory: str | os.PathLike[str], *, only: Callable[[str], bool] | None = None
    ) -> None: ...

    def make_publisher(self, config: PublishConfig) -> Publisher: ...
