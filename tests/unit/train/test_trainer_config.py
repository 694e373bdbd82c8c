from __future__ import annotations

from typing import Any

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.train import TrainerConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch_threads", 0),
        ("non_finite_loss", "ignore"),
        ("prefetch", "yes"),
        ("quiet", 1),
        ("log_interval_s", 0),
        ("metrics_window_batches", 0),
        ("predictions", "sigmoid"),
        ("groups", 3),
        ("stop_timeout_s", float("nan")),
    ],
)
def test_bad_field_is_named_with_what_was_found(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"TrainerConfig.{field} must be .*got "):
        TrainerConfig(**{field: value})
