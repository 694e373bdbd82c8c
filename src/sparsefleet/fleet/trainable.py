"""Whether there is something to train, and somebody who can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.dense_optimizer import DenseGroup
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import LocalConfig, ModeConfig, mode_config
from sparsefleet.nn.sparse_module import SparseModule

__all__ = ["require_local", "require_something_to_train", "require_started"]

Part = TypeVar("Part")


def require_something_to_train(
    model: nn.Module, groups: Sequence[DenseGroup], modules: Sequence[SparseModule]
) -> None:
    """Refuses a model with nothing in it, or with table names that dense parameters have."""
    if not groups and not modules:
        raise ConfigError(
            f"{type(model).__name__} has no parameter that the optimizer holds and no "
            "SparseEmbedding: there is nothing to train"
        )
    own = {group.table for group in groups}
    for module in modules:
        if module.name in own:
            raise ConfigError(
                f"a {type(module).__name__} has the table name '{module.name}', which is kept "
                "for dense parameters: choose another"
            )


def require_local(groups: Sequence[DenseGroup], role: RoleInfo, mode: str | ModeConfig) -> None:
    """Refuses groups whose rule only torch knows where servers are to apply it."""
    if groups and (role.server_endpoints or not isinstance(mode_config(mode), LocalConfig)):
        where = "with servers" if role.server_endpoints else f"in mode {mode!r}"
        raise ConfigError(
            f"{groups[0].reason}; {where} only these can be used, or any in mode 'collective'"
        )


def require_started(part: Part | None) -> Part:
    """What a model has from its start on."""
    if part is None:
        raise ConfigError("the model is not started: call fleet.init_worker() first")
    return part
