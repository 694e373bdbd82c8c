"""The ranks of a collective job, from what a process was told of its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = ["join_world"]


def join_world(role: RoleInfo, *, timeout_s: float = 300.0) -> World:
    """Meets the other workers of the job; each is the rank of its index. Close it at the end.

    A worker that is alone needs no meeting point and no network. Raises ConfigError if the role is
    a server's or names no meeting point, and as `World.join` does.

    >>> with join_world(RoleInfo(kind="local")) as world:
    ...     world.size
    1
    """
    import torch.distributed as dist

    from sparsefleet.collective import World

    if role.is_server:
        raise ConfigError(f"server {role.index} is no rank: only workers train collectively")
    if role.worker_num > 1 and not role.meeting_point and not dist.is_initialized():
        raise ConfigError(
            f"worker {role.index} of {role.worker_num} was not told where to meet the others: set "
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
        gpu=role.gpu,
        timeout_s=timeout_s,
    )
