"""A training loop that never applies row gradients gets a warning."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from sparsefleet.nn import SparseEmbedding, apply_gradients
from sparsefleet.store import LocalStore


def test_a_loop_without_apply_gradients_warns_soon(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(SparseEmbedding("ads", 4, store=LocalStore()), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "sparsefleet.nn"):
        for _ in range(250):
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
    [record] = caplog.records
    assert "rows are not trained" in record.getMessage()
    assert "apply_gradients(model) next to optimizer.step()" in record.getMessage()
    assert apply_gradients(model).applied == 2


def test_a_loop_that_accumulates_a_few_steps_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = SparseEmbedding("ads", 4, store=LocalStore())
    with caplog.at_level(logging.WARNING, "sparsefleet.nn"):
        for _ in range(4):
            for _ in range(100):
                model(torch.tensor([1, 2])).sum().backward()
            apply_gradients(model)
    assert not caplog.records
