"""From a name or config to a mode, and its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.modes.async_mode import AsyncMode
from sparsefleet.modes.geo import GeoMode
from sparsefleet.modes.half_async import HalfAsyncMode
from sparsefleet.modes.hybrid import HybridMode
from sparsefleet.modes.local import LocalMode
from sparsefleet.modes.mode_choice import make_mode, mode_config
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.sync import SyncMode
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("local", LocalMode),
        ("sync", SyncMode),
        ("half_async", HalfAsyncMode),
        ("async", AsyncMode),
        ("hybrid", HybridMode),
        ("geo", GeoMode),
    ],
)
def test_names_and_configs_make_the_mode(name: str, kind: type) -> None:
    with LocalStore() as store:
        setting = ModeSetting(store=store, tables={})
        for chosen in (name, mode_config(name)):
            made = make_mode(chosen, setting)
            assert type(made) is kind
            assert made.name == name


def test_a_config_is_taken_as_it_is() -> None:
    config = AsyncConfig(max_merge=7)
    assert mode_config(config) is config


def test_unknown_modes_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'half_async'\\?"):
        mode_config("half-async")
    with pytest.raises(ConfigError, match="got 3"):
        mode_config(3)  # type: ignore[arg-type]


def test_dense_step_is_for_local_only() -> None:
    with LocalStore() as store:
        setting = ModeSetting(store=store, tables={}, dense_step=dict.clear)
        with pytest.raises(ConfigError, match="dense_step"):
            make_mode("sync", setting)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"threads": 0}, "threads"),
        ({"worker_index": 1}, "worker_index"),
        ({"wait_s": 0.0}, "wait_s"),
        ({"group": ""}, "group"),
        ({"dense": {"net": np.zeros(2)}}, "'net'.*float32"),
        ({"dense": {"net": np.zeros((2, 2), np.float32)}}, "'net'.*shape"),
        ({"dense": {"net": np.zeros(4, np.float32)[::2]}}, "'net'.*contiguous"),
        (
            {"dense": {"net": np.zeros(2, np.float32)}, "dense_optimizers": {}},
            "optimizer for.*'net'",
        ),
    ],
    ids=str,
)
def test_bad_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with LocalStore() as store, pytest.raises(ConfigError, match=named):
        ModeSetting(**{"store": store, "tables": {}, "dense_optimizers": {"net": SGD()}, **wrong})


def test_geo_interval_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="push_interval_steps"):
        GeoConfig(push_interval_steps=0)
