"""Training modes decide when gradients and new values are exchanged, and which workers wait."""

from sparsefleet.modes.async_mode import AsyncConfig
from sparsefleet.modes.collective_mode import CollectiveConfig
from sparsefleet.modes.geo import GeoConfig
from sparsefleet.modes.half_async import HalfAsyncConfig
from sparsefleet.modes.hybrid import HybridConfig
from sparsefleet.modes.local import LocalConfig
from sparsefleet.modes.mode import ModeStats
from sparsefleet.modes.mode_choice import ModeConfig
from sparsefleet.modes.sync import SyncConfig

__all__ = [
    "AsyncConfig",
    "CollectiveConfig",
    "GeoConfig",
    "HalfAsyncConfig",
    "HybridConfig",
    "LocalConfig",
    "ModeConfig",
    "ModeStats",
    "SyncConfig",
]
