"""Binds a model to the fleet of a process, with the placement that its mode needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.engine.rank_placement import RankPlacement
from sparsefleet.engine.trial import chosen_mode
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.job_process import require_known_workers
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import CollectiveConfig
from sparsefleet.modes.mode_choice import mode_config

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sparsefleet.engine.rate_schedule import ScheduleLike
    from sparsefleet.fleet.fleet import Fleet
    from sparsefleet.modes import ModeConfig
    from sparsefleet.optim import Optimizer
    from sparsefleet.store.remote_store import WireDtype

__all__ = ["bind_model", "mode_for_job"]


def bind_model(
    fleet: Fleet,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Optimizer,
    mode: str | ModeConfig | None = None,
    *,
    threads: int = 1,
    schedule: ScheduleLike | None = None,
    track_dirty: bool = False,
    wire_dtype: WireDtype | None = None,
) -> DistributedModel:
    """Bind the model to the fleet, which manages it from now on; see `Fleet.distribute`."""
    mode = chosen_mode(mode)
    config = mode_for_job(mode, fleet.role)
    settings: dict[str, Any] = {
        "role": fleet.role,
        "threads": threads,
        "schedule": schedule,
        "name": fleet.next_model_name(),
        "track_dirty": track_dirty,
        "wire_dtype": wire_dtype,
    }
    if isinstance(config, CollectiveConfig):
        strategy = config.strategy
        mode, settings["wait_s"] = config, strategy.timeout_s
        settings["placement"] = RankPlacement(
            strategy, lambda: fleet.join_workers(timeout_s=strategy.timeout_s)
        )
    bound = DistributedModel(model, optimizer, mode, **settings)
    fleet.attach(bound)
    return bound


def mode_for_job(mode: str | ModeConfig | None, role: RoleInfo) -> ModeConfig | None:
    """Return the config of the mode; a mode of None means the model's own default.

    Several workers without servers can train only in mode "collective"; in any other mode, each
    worker would wait for the others in a store that they do not share.

    >>> mode_for_job(None, RoleInfo(kind="worker", index=1, worker_num=2)).strategy.num_rings
    1
    """
    config = None if mode is None else mode_config(mode)
    if config is None and role.kind == "local" and "WORLD_SIZE" in os.environ:
        require_known_workers(role)
    if role.server_endpoints or role.worker_num == 1:
        return config
    if config is None:
        return CollectiveConfig()
    if not isinstance(config, CollectiveConfig):
        raise ConfigError(
            f"mode {mode!r} cannot connect several workers without servers, but this job has "
            f"{role.worker_num} workers and no servers: start it with --servers, or choose mode "
            "'collective'"
        )
    return config
