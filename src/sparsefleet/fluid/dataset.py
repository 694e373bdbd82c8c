"""Fluid's Datasets by name: native readers of files, streaming or in memory."""

from __future__ import annotations

from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.in_memory_dataset import InMemoryDataset
from sparsefleet.fluid.queue_dataset import FileInstantDataset, QueueDataset

__all__ = ["DatasetFactory", "FileInstantDataset", "InMemoryDataset", "QueueDataset"]


class DatasetFactory:
    """Makes Datasets by name.

    >>> from sparsefleet import fluid
    >>> dataset = DatasetFactory().create_dataset("InMemoryDataset")
    >>> dataset.set_use_var([fluid.data("ads", [None, 1], "int64", lod_level=1)])
    """

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """ "QueueDataset", "InMemoryDataset" or "FileInstantDataset"; ValueError for others."""
        kinds = (QueueDataset, InMemoryDataset, FileInstantDataset)
        for kind in kinds:
            if kind.__name__ == datafeed_class:
                return kind()
        raise ConfigError(
            f"there is no Dataset called {datafeed_class!r}: "
            f"{', '.join(kind.__name__ for kind in kinds)}"
        )
