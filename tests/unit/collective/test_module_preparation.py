"""Effects of a strategy on a module: recomputation, precision, compilation."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from sparsefleet.collective import AmpConfig, CollectiveStrategy, World, module_preparation
from sparsefleet.collective.module_preparation import LossScaler, autocast_for, prepare_module
from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbedding


class Counted(nn.Module):
    """Counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return torch.dropout(self.linear(x).relu(), 0.5, self.training)


def prepared(model: nn.Module, strategy: CollectiveStrategy) -> nn.Module:
    return prepare_module(model, World.join(), strategy)[0]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(7)
    model(torch.ones(2, 3)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_recomputed_submodules_run_twice_with_the_same_bits() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Counted(), Counted())
    expected = gradients(plain)
    plain.zero_grad()
    names = list(plain.state_dict())
    model = prepared(plain, CollectiveStrategy(recompute=("0",)))
    assert model is plain
    assert list(model.state_dict()) == names
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))
    assert [child.runs for child in model] == [3, 2]


def test_recomputed_submodules_run_once_without_gradients() -> None:
    model = prepared(nn.Sequential(Counted()), CollectiveStrategy(recompute=("0",)))
    with torch.no_grad():
        model(torch.ones(1, 3))
    assert model[0].runs == 1  # type: ignore[index]


def test_recomputed_batch_norms_follow_a_batch_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    plain, recomputed = nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3))
    prepared(recomputed, CollectiveStrategy(recompute=("0",)))
    for model in (plain, recomputed):
        model(x).square().sum().backward()
    found = recomputed.state_dict()
    assert all(torch.equal(found[f"0.{name}"], v) for name, v in plain.state_dict().items())


def test_rows_of_a_table_are_not_recomputed() -> None:
    model = nn.Sequential(SparseEmbedding("ads", dim=2), nn.Linear(2, 1))
    with pytest.raises(
        ConfigError, match="looks up table 'ads', whose rows are fetched once per step"
    ):
        prepared(model, CollectiveStrategy(recompute=("0",)))


def saved_bytes(model: nn.Module) -> int:
    """Bytes that the forward pass keeps for the backward pass."""
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.ones(100, 3))
    return kept


def test_recomputation_keeps_less() -> None:
    def model() -> nn.Module:
        layers = [layer for _ in range(5) for layer in (nn.Linear(3, 3), nn.Sigmoid())]
        return nn.Sequential(nn.Sequential(*layers), nn.Linear(3, 1))

    recomputed = prepared(model(), CollectiveStrategy(recompute=("0",)))
    assert saved_bytes(recomputed) < saved_bytes(model()) / 3


def test_unknown_submodules_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="recompute names 'first'.*Sequential; its submodules are 0"
    ):
        prepared(nn.Sequential(nn.Linear(1, 1)), CollectiveStrategy(recompute=("first",)))


def test_parts_of_a_model_stay_in_float32() -> None:
    amp = AmpConfig(float32_modules=("1",))
    model = prepared(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), CollectiveStrategy(amp=amp))
    x = torch.ones(1, 2)
    with autocast_for(amp, torch.device("cpu")):
        assert model[0](x).dtype == torch.bfloat16  # type: ignore[index]
        assert model(x).dtype == torch.float32


def test_a_model_wholly_in_float32_gives_the_bits_of_one_without_mixed_precision() -> None:
    torch.manual_seed(0)
    x, model = torch.randn(4, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    expected = model(x)
    amp = AmpConfig(init_loss_scaling=1.0, dynamic=False, float32_modules=("",))
    model = prepared(model, CollectiveStrategy(amp=amp))
    with autocast_for(amp, torch.device("cpu")):
        assert torch.equal(model(x), expected)


def test_without_a_compiler_fusion_is_off_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    module_preparation.warn_fusion_is_off.cache_clear()
    model = nn.Linear(1, 1)
    with caplog.at_level(logging.WARNING, "sparsefleet.collective"):
        for _ in range(2):
            assert prepared(model, CollectiveStrategy(compile=True)) is model
    assert [r.getMessage() for r in caplog.records] == [
        "kernel fusion is off: no C++ compiler was found; training continues without it"
    ]
    assert model._compiled_call_impl is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.skipif(module_preparation.found_compiler() is None, reason="no C++ compiler")
def test_with_a_compiler_the_forward_is_compiled() -> None:
    torch.manual_seed(0)
    x, model = torch.ones(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    expected = model(x)
    model = prepared(model, CollectiveStrategy(compile=True))
    assert torch.allclose(model(x), expected)
    model(x).sum().backward()


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
