"""The classes of the fleet object and of its optimizers."""

from sparsefleet.fluid.distributed.program_fleet import ProgramFleet as Fleet
from sparsefleet.fluid.distributed.program_fleet import ProgramOptimizer as DistributedOptimizer
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.base.fleet_base")

__all__ = ["DistributedOptimizer", "Fleet"]
