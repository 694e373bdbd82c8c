"""The mode of a model, where the job decides it or excludes it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.joined_role import require_known_workers
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import CollectiveConfig, mode_config

if TYPE_CHECKING:
    from sparsefleet.modes import ModeConfig

__all__ = ["mode_for_job"]


def mode_for_job(mode: str | ModeConfig | None, role: RoleInfo) -> ModeConfig | None:
    """The config of the mode; None: the model's own default.

    Several workers without servers can only train collectively: in any other mode each would
    wait for the others at a store that they do not see.

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
            f"mode {mode!r} cannot join several workers without servers, and this job has "
            f"{role.worker_num} workers and no servers: start it with --servers, or choose mode "
            "'collective'"
        )
    return config
