"""The interface that the training loop requires of a model, for both APIs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.fleet_model import StartedModel

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from sparsefleet.engine.lost_data import LeftOut
    from sparsefleet.engine.model_checkpoint import Predicate
    from sparsefleet.engine.model_tensors import ModelTensors
    from sparsefleet.engine.rank_replacement import RankReplacement
    from sparsefleet.engine.step import ReadAhead, Step, StepPosition
    from sparsefleet.engine.succession import Succession
    from sparsefleet.fleet.board import Board
    from sparsefleet.fleet.role_info import RoleInfo
    from sparsefleet.modes.mode_setting import BatchOrigin
    from sparsefleet.nn.pulled_rows import PulledRows
    from sparsefleet.store import TableSpec

__all__ = ["BoundModel", "require_started"]

Part = TypeVar("Part")


class BoundModel(StartedModel, Protocol):
    """A model whose values are kept in a store, and its training steps; see `DistributedModel`.

    The Fluid API has a second implementation, for programs that store and update their own values.
    """

    name: str
    role: RoleInfo
    threads: int
    wait_s: float
    tensors: ModelTensors
    succession: Succession | None
    replacement: RankReplacement | None
    left_out: dict[int, LeftOut]

    @property
    def device(self) -> torch.device | None: ...
    @property
    def board(self) -> Board: ...
    @property
    def tables(self) -> Mapping[str, TableSpec]: ...
    @property
    def schedule_steps(self) -> int: ...

    def fail(self, error: BaseException) -> None: ...

    # -- steps ----------------------------------------------------------------------------------

    def step(
        self,
        replica: nn.Module | None = None,
        *,
        batch: Any = None,
        pulled: PulledRows | None = None,
        lookups: Any = None,
        ahead: ReadAhead | None = None,
        place: StepPosition | None = None,
        origin: BatchOrigin | None = None,
    ) -> Step: ...

    def evaluating(
        self, replica: nn.Module | None = None, *, batch: Any = None, lookups: Any = None
    ) -> AbstractContextManager[Any]: ...

    def prefetch(self, batch: Any, lookups: Any = None) -> PulledRows | None: ...
    def plan_ahead(self, batch: Any, lookups: Any = None) -> PulledRows | None: ...

    # -- files ----------------------------------------------------------------------------------

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        only: Predicate | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None: ...

    def random_state(self) -> dict[str, Any]: ...
    def set_random_state(self, state: Mapping[str, Any]) -> None: ...
    def collect(self) -> None: ...
    def notes_to_save(self) -> dict[str, Any]: ...
    def take_notes(self, notes: Mapping[str, Any]) -> None: ...
    def fitted(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]: ...


def require_started(part: Part | None) -> Part:
    """Return `part`, which a model has only once it is started; raise an error if it is None."""
    if part is None:
        raise ConfigError("the model is not started: call fleet.init_worker() first")
    return part
