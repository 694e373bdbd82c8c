from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.zoo import references
from tests.unit.zoo.cases import CASES, FEATURES, NUM_IDS, Case, make_batch
from torch import Tensor, nn

from sparsefleet import zoo
from sparsefleet.nn import bind, import_embedding
from sparsefleet.nn.binding import sparse_modules
from sparsefleet.store import LocalStore
from sparsefleet.zoo.xdeepfm import CompressedInteractions

TOLERANCE = 1e-5


def dense_tables(model: nn.Module) -> dict[str, Tensor]:
    """Fill all tables with random rows; return the same values as tensors with gradients."""
    bind(model, LocalStore())
    tables: dict[str, Tensor] = {}
    for module in sparse_modules(model):
        if module.name not in tables:
            tables[module.name] = torch.randn(NUM_IDS, module.dim, requires_grad=True)
            import_embedding(module, tables[module.name])
    return tables


def table_gradients(model: nn.Module) -> dict[str, np.ndarray]:
    """Gradients of all modules, summed by table, float32[V, D] each."""
    found: dict[str, np.ndarray] = {}
    for module in sparse_modules(model):
        for table, (keys, sums) in module.take_gradients().items():
            total = found.setdefault(table, np.zeros((NUM_IDS, module.dim), np.float32))
            np.add.at(total, keys.astype(np.int64), sums)
    return found


def parts(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else list(output)


def weighted(outputs: list[Tensor]) -> Tensor:
    """Return a scalar in which every output value has a different weight."""
    return sum(
        ((one * torch.linspace(0.5, 2.0, one.numel()).view(one.shape)).sum() for one in outputs),
        torch.zeros(()),
    )


TWO_CLASSES = Case(
    lambda f: zoo.CtrDnn(f, hidden=(9, 5), num_logits=2), FEATURES, references.ctr_dnn_of_classes
)


@pytest.mark.parametrize(
    "case", [*CASES.values(), TWO_CLASSES], ids=[*CASES, "ctr_dnn with two logits"]
)
def test_outputs_and_gradients_are_those_of_plain_torch(case: Case) -> None:
    torch.manual_seed(3)
    model = case.make()
    tables = dense_tables(model)
    batch = make_batch(5, without=case.without)
    output = model(**batch)
    found = parts(output if case.finish is None else case.finish(output))
    weighted(found).backward()

    parameters = {
        name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()
    }
    wanted = parts(case.reference(parameters, tables, batch))
    weighted(wanted).backward()

    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    for name, parameter in model.named_parameters():
        theirs = parameters[name].grad
        assert theirs is not None, f"the reference does not use {name}"
        torch.testing.assert_close(
            parameter.grad,
            theirs,
            rtol=TOLERANCE,
            atol=TOLERANCE,
            msg=lambda text, n=name: f"{n}: {text}",
        )
    gradients = table_gradients(model)
    assert gradients.keys() == {name for name, value in tables.items() if value.grad is not None}
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            torch.from_numpy(gradient), tables[name].grad, rtol=TOLERANCE, atol=TOLERANCE
        )


def test_interactions_are_products_of_a_growing_number_of_fields() -> None:
    torch.manual_seed(0)
    interactions = CompressedInteractions(num_fields=3, maps=(4, 5))
    rows = torch.randn(2, 3, 8)
    found, scaled = interactions(rows), interactions(-2 * rows)
    torch.testing.assert_close(scaled[:, :4], 4 * found[:, :4])  # of two fields
    torch.testing.assert_close(scaled[:, 4:], -8 * found[:, 4:])  # of three
