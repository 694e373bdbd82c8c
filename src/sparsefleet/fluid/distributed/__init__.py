"""Programs that train on parameter servers."""

from sparsefleet.fluid.distributed.program_role import ProgramRole

__all__ = ["ProgramRole"]
