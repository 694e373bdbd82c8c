"""Workers of a collective job that have met, or are about to."""

from __future__ import annotations

from sparsefleet.collective import World
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.collective_world import join_world
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.role_makers import RoleMakerBase
from sparsefleet.fleet.roles import role_from_environment

__all__ = ["JoinedRoleMaker", "join_workers", "require_known_workers"]


class JoinedRoleMaker(RoleMakerBase):
    """The role of a worker that has met the others, in a job without servers."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._given = RoleInfo(kind="worker", index=world.rank, worker_num=world.size)

    def _find(self) -> RoleInfo:
        return self._given


def join_workers(role: RoleInfo, *, timeout_s: float) -> World:
    """As `join_world`; refuses to train alone in a job of which `fleet.init()` did not know."""
    require_known_workers(role)
    return join_world(role, timeout_s=timeout_s)


def require_known_workers(role: RoleInfo) -> None:
    """Raises if the environment tells of a collective job in which the role is alone."""
    if role.kind != "local":
        return
    found = role_from_environment(is_collective=True)
    if found.worker_num > 1:
        raise ConfigError(
            f"this is worker {found.index} of {found.worker_num} of a collective job, but "
            "fleet.init() did not look for one: call fleet.init(is_collective=True), or leave "
            "it to a Trainer with mode='collective'"
        )
