"""Programs of one process made those of a job."""

from sparsefleet.fleet import HashName, RoundRobin
from sparsefleet.fluid.transpiler.distribute_transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
)
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.transpiler")

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig", "HashName", "RoundRobin"]
