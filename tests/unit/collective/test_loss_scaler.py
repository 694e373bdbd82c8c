"""The loss scale follows a script of finite and non-finite steps as Fluid's does."""

from __future__ import annotations

import pytest
import torch

from sparsefleet.collective import AmpConfig
from sparsefleet.collective.module_preparation import LossScaler
from sparsefleet.errors import ConfigError


def scaler(**fields: float | bool) -> LossScaler:
    return LossScaler(AmpConfig(**{"init_loss_scaling": 8.0, **fields}))  # type: ignore[arg-type]


def test_scale_grows_in_the_step_after_the_given_number_of_good_ones() -> None:
    scale = scaler(incr_every_n_steps=2)
    assert [scale.update(is_finite=True) for _ in range(6)] == [8, 8, 16, 16, 16, 32]
    assert scale.good_steps == 0


def test_scale_shrinks_after_more_bad_steps_in_a_row_than_given() -> None:
    scale = scaler(decr_every_n_nan_or_inf=2, decr_ratio=0.5)
    script = [False, False, True, False, False, False]
    assert [scale.update(is_finite=finite) for finite in script] == [8, 8, 8, 8, 8, 4]
    assert scale.bad_steps == 0


def test_an_overflow_ends_a_run_of_good_steps() -> None:
    scale = scaler(incr_every_n_steps=2)
    for finite in (True, True, False, True, True):
        scale.update(is_finite=finite)
    assert (scale.scale, scale.good_steps, scale.bad_steps) == (8.0, 2, 0)


def test_scale_stays_between_one_and_the_largest_number() -> None:
    low = scaler(init_loss_scaling=1.1, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
    for _ in range(4):
        low.update(is_finite=False)
    assert low.scale == 1.0
    high = scaler(init_loss_scaling=2.0**127, incr_every_n_steps=1)
    for _ in range(2):
        high.update(is_finite=True)
    assert (high.scale, high.good_steps) == (2.0**127, 0)


def test_scale_is_a_float32_number() -> None:
    scale = scaler(decr_every_n_nan_or_inf=1, decr_ratio=0.8)
    for _ in range(4):
        scale.update(is_finite=False)
    assert scale.scale == float(torch.tensor(8.0) * torch.tensor(0.8) * torch.tensor(0.8))


def test_a_static_scale_stays() -> None:
    scale = scaler(dynamic=False)
    assert [scale.update(is_finite=False) for _ in range(9)] == [8.0] * 9


def test_state_resumes_where_it_was_taken() -> None:
    first, second = scaler(incr_every_n_steps=2), scaler(incr_every_n_steps=2)
    first.update(is_finite=True)
    second.load_state_dict(first.state_dict())
    script = [True, True, False]
    assert [first.update(is_finite=f) for f in script] == [
        second.update(is_finite=f) for f in script
    ]
    with pytest.raises(ConfigError, match="loss_scaling must be a number > 0, got 0.0"):
        second.load_state_dict({"loss_scaling": 0.0, "num_good_steps": 0, "num_bad_steps": 0})


def test_half_precision_losses_are_scaled_in_float32() -> None:
    loss = torch.tensor(3.0, dtype=torch.float16)
    scaled = scaler(init_loss_scaling=2.0**15).scaled(loss)
    assert (scaled.dtype, scaled.item()) == (torch.float32, 3 * 2.0**15)
