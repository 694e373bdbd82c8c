"""Collective training: ranks hold equal parameters and average gradients or parameters."""

from sparsefleet.collective.strategy import AmpConfig, CollectiveStrategy, LocalSgdConfig
from sparsefleet.collective.world import World

__all__ = ["AmpConfig", "CollectiveStrategy", "LocalSgdConfig", "World"]
