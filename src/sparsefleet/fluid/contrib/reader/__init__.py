"""Readers that Fluid had on trial."""

from sparsefleet.fluid.contrib.reader.distributed_reader import distributed_batch_reader
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.reader")

__all__ = ["distributed_batch_reader"]
