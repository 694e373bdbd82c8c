"""The fleet of this process, for collective training."""

from sparsefleet.fluid.incubate.fleet.collective._process import fleet
from sparsefleet.fluid.incubate.fleet.collective.collective_fleet import Collective
from sparsefleet.fluid.incubate.fleet.collective.collective_optimizer import CollectiveOptimizer
from sparsefleet.fluid.incubate.fleet.collective.distributed_strategy import DistributedStrategy
from sparsefleet.fluid.incubate.fleet.collective.train_status import TrainStatus
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.collective")

__all__ = ["Collective", "CollectiveOptimizer", "DistributedStrategy", "TrainStatus", "fleet"]
