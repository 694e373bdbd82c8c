"""The factory under the name that Fluid's guides have for it."""

from sparsefleet.fleet import DistributedStrategyFactory, StrategyFactory
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("distribute_transpiler.distributed_strategy_factory")

__all__ = ["DistributedStrategyFactory", "StrategyFactory"]
