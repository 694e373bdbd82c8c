"""Batch norm over all ranks equals batch norm over their joined batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses
from torch import nn

from sparsefleet.collective import World
from sparsefleet.collective.sync_batch_norm import (
    NormGroup,
    SyncBatchNorm,
    convert_batch_norms,
    normalize_together,
)
from sparsefleet.errors import ShapeError

ROWS = [(0, 3), (3, 4), (4, 4)]
"""Which rows of the joined batch each rank has: three, one, none."""


def joined() -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, far from zero so that sums of squares lose digits, and weights of the loss."""
    random = torch.Generator().manual_seed(3)
    shape = (4, 2, 5)
    return 1000 + torch.randn(shape, generator=random), torch.randn(shape, generator=random)


def normalize_part(world: World, momentum: float | None) -> dict[str, Any]:
    x, factors = joined()
    rows = slice(*ROWS[world.rank])
    own = x[rows].clone().requires_grad_()
    norm = SyncBatchNorm(nn.BatchNorm1d(2, momentum=momentum), NormGroup(world))
    y = norm(own)
    (y * factors[rows]).sum().backward()
    assert own.grad is not None
    return {
        "y": y.tolist(),
        "dx": own.grad.tolist(),
        "dw": norm.weight.grad.tolist(),
        "statistics": [norm.running_mean.tolist(), norm.running_var.tolist()],
    }


@pytest.mark.parametrize("momentum", [0.1, None])
def test_ranks_normalize_as_one_on_the_joined_batch(
    ranks: RankProcesses, momentum: float | None
) -> None:
    x, factors = joined()
    x.requires_grad_()
    norm = nn.BatchNorm1d(2, momentum=momentum)
    y = norm(x)
    (y * factors).sum().backward()
    found = ranks.run(normalize_part, 3, momentum)
    whole = torch.tensor([row for rank in found for row in rank["y"]])
    assert torch.allclose(whole, y, atol=1e-3)
    slopes = torch.tensor([row for rank in found for row in rank["dx"]])
    assert torch.allclose(slopes, x.grad, atol=1e-3)
    by_weight = torch.tensor([rank["dw"] for rank in found]).sum(0)
    assert torch.allclose(by_weight, norm.weight.grad, atol=1e-3)
    statistics = torch.tensor(found[0]["statistics"])
    assert torch.allclose(statistics, torch.stack([norm.running_mean, norm.running_var]))
    assert found[0]["statistics"] == found[1]["statistics"] == found[2]["statistics"]


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in ((3, 2, 2), (2,), (2,)))

    def slope(values: torch.Tensor) -> torch.Tensor:
        return normalize_together(values, weight, bias)[0].square().sum()

    x.requires_grad_()
    slope(x).backward()
    direction = torch.randn_like(x)
    step = 1e-2
    with torch.no_grad():
        found = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    assert found.item() == pytest.approx((x.grad * direction).sum().item(), rel=2e-2, abs=1e-2)


def test_converted_models_keep_their_parameters_and_evaluate_as_before() -> None:
    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(nn.Conv2d(1, 3, 1), norm, nn.Sequential(norm, nn.BatchNorm2d(3)))
    names = list(model.state_dict())
    x = torch.randn(2, 1, 4, 4)
    model(x)
    expected = model.eval()(x)
    parameters = list(model.parameters())
    converted = convert_batch_norms(model, NormGroup(World.join()))
    assert converted is model
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert sum(isinstance(m, SyncBatchNorm) for m in model.modules()) == 2
    assert model[1] is model[2][0]
    assert torch.equal(model(x), expected)


def test_a_batch_norm_without_weights_or_statistics_is_converted_too() -> None:
    x = torch.randn(4, 2)
    plain = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    converted = convert_batch_norms(plain, NormGroup(World.join()))
    assert torch.allclose(converted(x), plain(x), atol=1e-6)
    assert torch.allclose(converted.eval()(x), plain(x), atol=1e-6)


def test_half_precision_keeps_its_type() -> None:
    x = torch.randn(4, 2).bfloat16().requires_grad_()
    y, mean, *_ = normalize_together(x, torch.ones(2), torch.zeros(2))
    y.sum().backward()
    assert (y.dtype, mean.dtype, x.grad.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)


def test_input_without_channels_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"needs \[B, C, ...\], got shape \(3,\)"):
        normalize_together(torch.zeros(3), torch.ones(3), torch.zeros(3))
