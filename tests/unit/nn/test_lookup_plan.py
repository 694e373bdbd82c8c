from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.nn.counting_pull import CountingPull
from torch import nn

from sparsefleet.nn import SparseEmbedding, bind
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore

Forward = Callable[[nn.ModuleDict, Any], torch.Tensor]


def learn(forward: Forward, batch: Any) -> tuple[LookupPlan, nn.ModuleDict, CountingPull]:
    model = nn.ModuleDict(
        {"a": SparseEmbedding("a", 2, padding_idx=0), "b": SparseEmbedding("b", 3)}
    )
    store = LocalStore()
    bind(model, store)
    pull = CountingPull(store)
    with StepRows(pull) as step:
        forward(model, batch)
    pull.calls.clear()
    return LookupPlan.learn(step, batch), model, pull


def calls_of(plan: LookupPlan, model: nn.ModuleDict, pull: CountingPull, forward: Forward,
             batch: Any) -> list[dict[str, list[int]]]:  # fmt: skip
    """The pulls of a step whose rows are fetched by the plan, the planned one first."""
    pull.calls.clear()
    lookups = plan.lookups(batch)
    assert lookups is not None
    with StepRows(pull, pulled=pull_rows(lookups, pull)):
        forward(model, batch)
    return pull.calls


def ids(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(1, 99, shape))


CASES: dict[str, tuple[Forward, Callable[[], Any]]] = {
    "the batch itself": (lambda m, x: m["a"](x), lambda: ids(4, 3)),
    "nested": (
        lambda m, x: m["a"](x["deep"][1][0]).sum() + m["b"](x[3]).sum(),
        lambda: {"deep": ["text", (ids(4, 2), torch.zeros(4))], 3: ids(4)},
    ),
    "columns": (
        lambda m, x: m["a"](x[0][:, 1]).sum() + m["b"](x[0].select(1, 2)).sum(),
        lambda: (ids(4, 3), torch.zeros(4)),
    ),
    "slices and reshapes": (
        lambda m, x: m["a"](x[:, 1:]).sum() + m["b"](x.t()).sum() + m["b"](x.view(-1)).sum(),
        lambda: ids(4, 3),
    ),
    "tensors over one array": (
        lambda m, x: m["a"](x[0]).sum() + m["b"](x[1]).sum(),
        lambda: tuple(torch.from_numpy(part) for part in ids(2, 5).numpy()),
    ),
    "a view taken by the batch": (lambda m, x: m["a"](x), lambda: ids(8, 3)[2:6, 1]),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_taken_from_the_batch_are_pulled_in_one_request(case: str) -> None:
    forward, make_batch = CASES[case]
    plan, model, pull = learn(forward, make_batch())
    assert len(calls_of(plan, model, pull, forward, make_batch())) == 1


def test_ids_computed_in_the_forward_pass_cost_a_request_of_their_own() -> None:
    def forward(model: nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
        return model["a"](batch).sum() + model["b"](batch * 2).sum()

    plan, model, pull = learn(forward, torch.tensor([1, 2]))
    assert len(plan) == 1
    calls = calls_of(plan, model, pull, forward, torch.tensor([3, 4]))
    assert calls == [{"a": [3, 4]}, {"b": [6, 8]}]


def test_whole_tensors_may_have_another_shape_in_every_batch() -> None:
    def forward(model: nn.ModuleDict, batch: Any) -> torch.Tensor:
        return model["a"](batch["ids"])

    plan, model, pull = learn(forward, {"ids": ids(5)})
    assert len(calls_of(plan, model, pull, forward, {"ids": ids(9, 2)})) == 1


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(3, 3, dtype=torch.int64)},
        {"x": torch.ones(3, 4, dtype=torch.int64).t()},
        {"y": torch.ones(4, 3, dtype=torch.int64)},
        {"x": torch.ones(4, 3)},
        torch.ones(4, 3, dtype=torch.int64),
        [],
    ],
    ids=["shape", "stride", "name", "dtype", "no dict", "empty"],
)
def test_batch_laid_out_in_another_way_does_not_fit(batch: Any) -> None:
    plan, _, _ = learn(lambda m, x: m["a"](x["x"][:, 1]), {"x": ids(4, 3)})
    assert plan.lookups(batch) is None


def test_rows_planned_but_not_looked_up_are_simply_unused() -> None:
    def forward(model: nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
        found = model["a"](batch[0]).sum()
        return found if batch[1, 0] > 5 else found + model["b"](batch[1]).sum()

    plan, model, pull = learn(forward, torch.tensor([[1, 2], [3, 4]]))
    batch = torch.tensor([[1, 2], [8, 9]])
    lookups = plan.lookups(batch)
    assert lookups is not None
    with StepRows(pull, pulled=pull_rows(lookups, pull)) as step:
        forward(model, batch).backward()
    assert set(step.gradients()) == {"a"}


def test_empty_ids_are_planned_as_the_tensor_they_are() -> None:
    def forward(model: nn.ModuleDict, batch: Any) -> torch.Tensor:
        return model["a"](batch[1]).sum() + model["b"](batch[0]).sum()

    plan, model, pull = learn(forward, (ids(0), ids(0)))
    calls = calls_of(plan, model, pull, forward, (torch.tensor([1]), torch.tensor([2])))
    assert calls == [{"a": [2], "b": [1]}]
