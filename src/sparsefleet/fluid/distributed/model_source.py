"""What a job trains of a program."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.fluid.distributed.served_tables import ServedTables
from sparsefleet.fluid.framework import Program

__all__ = ["ModelSource"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A program after `minimize`, before it was changed for its role."""

    program: Program
    startup: Program
    tables: ServedTables
    name: str
    """What the training is called on the servers."""
    min_block_size: int = 8192
    """Elements of a dense table; fewer are not worth another server."""
