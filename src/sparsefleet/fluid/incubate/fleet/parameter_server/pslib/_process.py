"""The one fleet object of this process under this name."""

from sparsefleet.fluid.distributed.pslib_fleet import PslibFleet

fleet = PslibFleet()
