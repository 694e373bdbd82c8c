"""File systems of checkpoints, by the name that Fluid has for them."""

from sparsefleet.fluid.file_systems import BDFS, FS, LocalFS

__all__ = ["BDFS", "FS", "LocalFS"]
