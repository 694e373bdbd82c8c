"""Invalid settings are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig
from sparsefleet.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (CollectiveStrategy, {"fuse_all_reduce": 1}, "fuse_all_reduce must be True or False"),
        (CollectiveStrategy, {"fuse_memory_mb": float("nan")}, "fuse_memory_mb"),
        (CollectiveStrategy, {"num_rings": 0}, "num_rings must be an int in 1..64, got 0"),
        (CollectiveStrategy, {"gradient_merge_steps": 0}, "gradient_merge_steps"),
        (CollectiveStrategy, {"recompute": ["a"]}, "recompute must be a tuple of submodule names"),
        (CollectiveStrategy, {"timeout_s": 0}, "timeout_s"),
        (
            CollectiveStrategy,
            {"local_sgd": LocalSgdConfig(), "gradient_merge_steps": 2},
            "local_sgd and gradient_merge_steps",
        ),
        (
            CollectiveStrategy,
            {"local_sgd": LocalSgdConfig(), "sync_batch_norm": True},
            "sync_batch_norm exchanges statistics in every batch",
        ),
        (CollectiveStrategy, {"local_sgd": 4}, r"local_sgd must be LocalSgdConfig\(.*got 4"),
        (CollectiveStrategy, {"amp": True}, r"amp must be AmpConfig\(.*or None, got True"),
        (LocalSgdConfig, {"steps": 0}, "steps must be an int"),
        (LocalSgdConfig, {"steps": 32, "adaptive": True}, "steps must be <= max_steps 16, got 32"),
        (AmpConfig, {"dtype": "float64"}, "dtype must be one of auto, bfloat16, float16"),
        (AmpConfig, {"incr_ratio": 1.0}, "incr_ratio must be a finite number > 1"),
        (AmpConfig, {"incr_ratio": "2"}, "incr_ratio must be a finite number > 1, got '2'"),
        (AmpConfig, {"decr_ratio": 1.0}, "decr_ratio must be a number between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(kind: type, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**fields)


def test_a_flag_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", "many")
    with pytest.raises(ConfigError, match="FLAGS_fuse_parameter_memory_size.*'many'"):
        CollectiveStrategy().fuse_bytes()
