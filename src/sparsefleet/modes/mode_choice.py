"""Creates a mode from its name or config."""

from __future__ import annotations

import difflib

from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.errors import ConfigError
from sparsefleet.modes.async_mode import AsyncConfig, AsyncMode
from sparsefleet.modes.collective_mode import CollectiveConfig, CollectiveMode, HybridCollectiveMode
from sparsefleet.modes.geo import GeoConfig, GeoMode
from sparsefleet.modes.half_async import HalfAsyncConfig, HalfAsyncMode
from sparsefleet.modes.hybrid import HybridConfig, HybridMode
from sparsefleet.modes.local import LocalConfig, LocalMode
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.sync import SyncConfig, SyncMode

ModeConfig = (
    LocalConfig
    | SyncConfig
    | HalfAsyncConfig
    | AsyncConfig
    | HybridConfig
    | GeoConfig
    | CollectiveConfig
)

_CONFIG_OF: dict[str, type[ModeConfig]] = {
    "local": LocalConfig,
    "sync": SyncConfig,
    "half_async": HalfAsyncConfig,
    "async": AsyncConfig,
    "hybrid": HybridConfig,
    "geo": GeoConfig,
    "collective": CollectiveConfig,
}


def mode_config(chosen: str | ModeConfig) -> ModeConfig:
    """Return the default config for a mode's name; a config is returned unchanged."""
    if isinstance(chosen, ModeConfig):
        return chosen
    found = _CONFIG_OF.get(chosen) if isinstance(chosen, str) else None
    if found is None:
        near = difflib.get_close_matches(str(chosen), _CONFIG_OF, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"mode must be one of {', '.join(map(repr, _CONFIG_OF))} or a mode config, "
            f"got {chosen!r}{hint}"
        )
    return found()


def with_strategy(
    chosen: str | ModeConfig | None, strategy: CollectiveStrategy | None
) -> str | ModeConfig | None:
    """Apply a strategy to the dense part of a mode; without a strategy, return the mode unchanged.

    >>> with_strategy("hybrid", CollectiveStrategy()).rows
    HybridConfig(max_merge=None, queue_size=None, wait_s=0.0, merge='auto')
    >>> with_strategy("sync", None)
    'sync'
    """
    if strategy is None:
        return chosen
    if not isinstance(strategy, CollectiveStrategy):
        raise ConfigError(f"strategy must be a CollectiveStrategy(...) or None, got {strategy!r}")
    if isinstance(chosen, CollectiveConfig):
        raise ConfigError(
            "the mode is a CollectiveConfig, which already has a strategy; remove strategy="
        )
    config = CollectiveConfig() if chosen is None else mode_config(chosen)
    if isinstance(config, CollectiveConfig):
        return CollectiveConfig(strategy=strategy)
    if isinstance(config, HybridConfig):
        return CollectiveConfig(strategy=strategy, rows=config)
    raise ConfigError(f"strategy= needs mode 'collective' or 'hybrid', got mode {chosen!r}")


def data_streams(chosen: str | ModeConfig) -> tuple[int, ...]:
    """Return the mode's `Mode.data_streams` before the mode is created."""
    is_hybrid = isinstance(mode_config(chosen), HybridConfig)
    return HybridMode.data_streams if is_hybrid else Mode.data_streams


def make_mode(chosen: str | ModeConfig, setting: ModeSetting) -> Mode:
    """Create the mode with the given name or config, without starting it.

    >>> import numpy as np
    >>> from sparsefleet.optim import SGD
    >>> from sparsefleet.store import Constant, LocalStore, TableSpec
    >>> from sparsefleet.modes.mode_setting import StepGradients
    >>> spec = TableSpec(name="ads", dim=1, optimizer=SGD(lr=0.5), initializer=Constant(1.0))
    >>> store = LocalStore()
    >>> store.define(spec)
    >>> mode = make_mode("local", ModeSetting(store=store, tables={"ads": spec}))
    >>> mode.start()
    >>> keys = np.array([7], np.uint64)
    >>> mode.pull({"ads": keys})["ads"]
    array([[1.]], dtype=float32)
    >>> mode.hand_over(StepGradients({"ads": (keys, np.array([[1.0]], np.float32))}))
    >>> mode.pull({"ads": keys})["ads"]
    array([[0.5]], dtype=float32)
    >>> mode.finish()
    """
    config = mode_config(chosen)
    if setting.dense_step is not None and not isinstance(config, LocalConfig):
        raise ConfigError(
            "ModeSetting.dense_step needs mode 'local'; in other modes the servers apply dense "
            "gradients, with an optimizer from sparsefleet.optim"
        )
    if isinstance(config, AsyncConfig):
        return AsyncMode(setting, config)
    if isinstance(config, HybridConfig):
        return HybridMode(setting, config)
    if isinstance(config, GeoConfig):
        return GeoMode(setting, config)
    if isinstance(config, CollectiveConfig):
        kind = CollectiveMode if config.rows is None else HybridCollectiveMode
        return kind(setting, config)
    if isinstance(config, SyncConfig):
        return SyncMode(setting)
    return HalfAsyncMode(setting) if isinstance(config, HalfAsyncConfig) else LocalMode(setting)
