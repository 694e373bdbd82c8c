"""The one fleet object of this process for programs on parameter servers."""

from sparsefleet.fluid.distributed.program_fleet import ProgramFleet

fleet = ProgramFleet()
