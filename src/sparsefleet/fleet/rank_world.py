"""From the role of a process to the workers it trains with."""

from __future__ import annotations

from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.role_makers import RoleMakerBase
from sparsefleet.fleet.roles import role_from_environment

__all__ = ["JoinedRoleMaker", "join_world"]


class JoinedRoleMaker(RoleMakerBase):
    """The role of a worker that has met the others, in a job without servers."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._given = RoleInfo(kind="worker", index=world.rank, worker_num=world.size)

    def _find(self) -> RoleInfo:
        return self._given


def join_world(role: RoleInfo, strategy: CollectiveStrategy) -> World:
    """Meets the other workers where the launcher said; a worker that is alone meets nobody."""
    if role.worker_num > 1:
        return World.join(
            rank=role.index,
            size=role.worker_num,
            ranks_per_node=strategy.ranks_per_node or role.ranks_per_node,
            meeting_point=role.meeting_point,
            timeout_s=strategy.timeout_s,
        )
    found = role_from_environment(is_collective=True)
    if found.worker_num > 1:
        raise ConfigError(
            f"the environment is that of a collective job with {found.worker_num} workers, but "
            "fleet.init() did not look for one: call fleet.init(is_collective=True), or leave it "
            "to the Trainer"
        )
    return World.join(timeout_s=strategy.timeout_s)
