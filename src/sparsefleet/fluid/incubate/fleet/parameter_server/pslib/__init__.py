"""The fleet that Fluid had for its older parameter server; here it is on the same engine."""

from sparsefleet.fluid.distributed.pslib_fleet import PslibFleet as PSLib
from sparsefleet.fluid.incubate.fleet.parameter_server.pslib._process import fleet
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.parameter_server.pslib")

__all__ = ["PSLib", "fleet"]
