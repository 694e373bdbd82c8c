"""Connects the ranks of a collective job, based on the role of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.incarnation import Incarnation, are_ranks_replaced
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.roles import role_from_environment

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = ["join_workers", "join_world", "require_known_workers"]


def join_world(role: RoleInfo, *, timeout_s: float = 300.0) -> World:
    """Connect to the other workers of the job; a worker's index is its rank.

    Close the result when it is no longer needed.

    A single worker needs no meeting point (the rendezvous address) and no network. Raises
    ConfigError for a server's role or a role without a meeting point, and any error from
    `World.join`.

    >>> with join_world(RoleInfo(kind="local")) as world:
    ...     world.size
    1
    """
    import torch.distributed as dist

    from sparsefleet.collective import World

    if role.is_server:
        raise ConfigError(
            f"server {role.index} cannot join the world: only workers train collectively"
        )
    if role.worker_num > 1 and not role.meeting_point and not dist.is_initialized():
        raise ConfigError(
            f"worker {role.index} of {role.worker_num} has no meeting point: set "
            "SPARSEFLEET_MEETING_POINT to host:port of worker 0 in all workers, or start the job "
            "with `sparsefleet launch`, torchrun or paddle.distributed.launch"
        )
    return World.join(
        rank=role.index,
        size=role.worker_num,
        ranks_per_node=role.workers_per_node,
        meeting_point=role.meeting_point or None,
        is_kept_elsewhere=role.is_meeting_kept_elsewhere,
        attempt=role.restarts,
        incarnation=Incarnation.from_environment().number if are_ranks_replaced() else None,
        gpu=role.gpu,
        timeout_s=timeout_s,
    )


def join_workers(role: RoleInfo, *, timeout_s: float) -> World:
    """Like `join_world`, but raise an error if this process would train alone in a larger job."""
    require_known_workers(role)
    return join_world(role, timeout_s=timeout_s)


def require_known_workers(role: RoleInfo) -> None:
    """Raise ConfigError if the role is a single worker but the environment names a larger job."""
    if role.kind != "local":
        return
    found = role_from_environment(is_collective=True)
    if found.worker_num > 1:
        raise ConfigError(
            f"this is worker {found.index} of {found.worker_num} in a collective job, but "
            "fleet.init() did not check for that: call fleet.init(is_collective=True), or use a "
            "Trainer with mode='collective'"
        )
