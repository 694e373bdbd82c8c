"""Modes: when gradients reach the store, when new values come back, and who waits for whom."""

from sparsefleet.modes.async_mode import AsyncConfig, AsyncMode
from sparsefleet.modes.collective_config import CollectiveConfig
from sparsefleet.modes.collective_mode import CollectiveMode
from sparsefleet.modes.geo import GeoConfig, GeoMode
from sparsefleet.modes.half_async import HalfAsyncConfig, HalfAsyncMode
from sparsefleet.modes.hybrid import HybridConfig, HybridMode
from sparsefleet.modes.local import LocalConfig, LocalMode
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import ModeConfig, make_mode, mode_config, with_strategy
from sparsefleet.modes.mode_setting import ModeSetting, RankSetting, Schedule, StepGradients
from sparsefleet.modes.mode_stats import ModeStats
from sparsefleet.modes.sync import SyncConfig, SyncMode

__all__ = [
    "AsyncConfig",
    "AsyncMode",
    "CollectiveConfig",
    "CollectiveMode",
    "GeoConfig",
    "GeoMode",
    "HalfAsyncConfig",
    "HalfAsyncMode",
    "HybridConfig",
    "HybridMode",
    "LocalConfig",
    "LocalMode",
    "Mode",
    "ModeConfig",
    "ModeSetting",
    "ModeStats",
    "RankSetting",
    "Schedule",
    "StepGradients",
    "SyncConfig",
    "SyncMode",
    "make_mode",
    "mode_config",
    "with_strategy",
]
