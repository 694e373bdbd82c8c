"""The base class for Fluid's fleet objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fleet import RoleInfo
from sparsefleet.fleet.job_process import JobProcess
from sparsefleet.fluid.fleet.role_makers import PaddleCloudRoleMaker, RoleMakerBase

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = ["Fleet"]


class Fleet(JobProcess):
    """A fleet that gets its role from one of Fluid's role makers.

    >>> fleet = Fleet()
    >>> fleet.init(PaddleCloudRoleMaker())
    >>> fleet.worker_num()
    1
    """

    def init(
        self,
        role_maker: RoleMakerBase | RoleInfo | None = None,
        *,
        is_collective: bool = False,
        world: World | None = None,
    ) -> None:
        """Get this process's role from `role_maker` or, if None, from the environment.

        See the base class for is_collective and world.
        """
        if role_maker is None and world is None:
            role_maker = PaddleCloudRoleMaker(is_collective=is_collective)
        if isinstance(role_maker, RoleMakerBase):
            role_maker.generate_role()
            role_maker = role_maker.info
        elif role_maker is not None and not isinstance(role_maker, RoleInfo):
            raise TypeError(
                "role_maker must be a RoleMakerBase such as PaddleCloudRoleMaker(), got "
                f"{type(role_maker).__name__}"
            )
        super().init(role_maker, is_collective=is_collective, world=world)

    def all_reduce_worker(self, input: Any, output: NDArray[Any]) -> None:
        """Write the sum of `input` over all workers to `output`. Must be called by all workers."""
        mine = np.ascontiguousarray(input)
        parts = self.all_gather(mine.tobytes())
        output[...] = sum(np.frombuffer(part, mine.dtype).reshape(mine.shape) for part in parts)
