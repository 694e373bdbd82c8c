"""Sparse embeddings against nn.Embedding(sparse=True) and nn.EmbeddingBag.

Same rows to start with, same ids, hence the same outputs, the same gradients of rows (1e-6,
repeats summed) and, with SGD, the same model after training. Ids pulled ahead by a plan and ids
pulled one lookup at a time must not differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag, apply_gradients, bind
from sparsefleet.nn.binding import sparse_modules
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore, Normal

IDS = 40  # small: most ids repeat within a batch
SETTINGS: dict[str, Any] = {"initializer": Normal(0.0, 0.5), "optimizer": optim.SGD(lr=0.1)}

Batch = dict[str, torch.Tensor]


@contextlib.contextmanager
def step_of(store: LocalStore, model: nn.Module, batch: Batch, planned: bool) -> Iterator[StepRows]:
    def pull(keys: Mapping[str, Any], /, **how: Any) -> Mapping[str, Any]:
        return store.pull_many(keys, **how)[0]

    pulled = None
    if planned:
        with StepRows(pull) as trial:
            model(batch)
        plan = LookupPlan.learn(trial, batch)
        assert len(plan) == len(trial.lookups)
        lookups = plan.lookups(batch)
        assert lookups is not None
        pulled = pull_rows(lookups, pull)
    with StepRows(pull, pulled=pulled) as step:
        yield step


def rows_of(module: SparseEmbedding | SparseEmbeddingBag) -> torch.Tensor:
    """Return the current or initial rows of ids 0..IDS-1."""
    reader = SparseEmbedding(module.name, module.dim, unknown="initial", store=module.store,
                             **SETTINGS).eval()  # fmt: skip
    return reader(torch.arange(IDS)).clone()


def dense_gradient(gradient: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    keys, sums = gradient
    found = torch.zeros(IDS, sums.shape[1])
    found[torch.from_numpy(keys.view(np.int64))] = torch.from_numpy(sums)
    return found


class Ours(nn.Module):
    """Two tables: one looked up three times, whole and by column, the other once."""

    def __init__(self) -> None:
        super().__init__()
        self.a = SparseEmbedding("a", 4, padding_idx=0, **SETTINGS)
        self.again = SparseEmbedding("a", 4, **SETTINGS)  # the same rows, and 0 is an id
        self.b = SparseEmbedding("b", 3, **SETTINGS)

    def forward(self, batch: Batch) -> torch.Tensor:
        x, y = batch["x"], batch["y"]
        parts = [self.a(x).flatten(1), self.a(x[:, 1]), self.again(x[:, 0]), self.b(y).sum(1)]
        return torch.cat(parts, 1)


class Theirs(nn.Module):
    def __init__(self, ours: Ours) -> None:
        super().__init__()
        self.a = nn.Embedding(IDS, 4, sparse=True)
        self.b = nn.Embedding(IDS, 3, sparse=True)
        with torch.no_grad():
            self.a.weight.copy_(rows_of(ours.a))
            self.b.weight.copy_(rows_of(ours.b))

    def forward(self, batch: Batch) -> torch.Tensor:
        x, y = batch["x"], batch["y"]
        seen = (x != 0).unsqueeze(-1)  # nn.Embedding's own padding row is not always zeros
        padded = self.a(x) * seen
        parts = [padded.flatten(1), padded[:, 1], self.a(x[:, 0]), self.b(y).sum(1)]
        return torch.cat(parts, 1)


def batches(count: int) -> Iterator[Batch]:
    random = np.random.default_rng(11)
    for size in (16, 1, 33)[:count]:
        yield {
            "x": torch.from_numpy(random.integers(0, IDS, (size, 5))),
            "y": torch.from_numpy(random.integers(0, 6, (size, 7))),
        }


@pytest.mark.parametrize("planned", [False, True])
def test_outputs_and_gradients_of_shared_padded_and_several_tables(planned: bool) -> None:
    ours, store = Ours(), LocalStore()
    bind(ours, store)
    theirs = Theirs(ours)
    for batch in batches(3):
        with step_of(store, ours, batch, planned) as step:
            out, wanted = ours(batch), theirs(batch)
            torch.testing.assert_close(out, wanted, rtol=0, atol=0)
            upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
            (out * out * upstream).sum().backward()
            theirs.zero_grad()
            (wanted * wanted * upstream).sum().backward()
        for table, gradient in step.gradients().items():
            sparse = getattr(theirs, table).weight.grad.coalesce()
            found = dense_gradient(gradient)
            torch.testing.assert_close(found, sparse.to_dense(), rtol=1e-5, atol=1e-6)
            if table == "b":  # no padding: the same keys, those of zero gradient too
                assert sorted(gradient[0].tolist()) == sparse.indices()[0].tolist()


BagInput = Callable[[np.random.Generator], tuple[torch.Tensor, ...]]


def fixed(random: np.random.Generator) -> tuple[torch.Tensor, ...]:
    return (torch.from_numpy(random.integers(0, IDS, (9, 6))),)


def ragged(random: np.random.Generator) -> tuple[torch.Tensor, ...]:
    starts = np.sort(random.integers(0, 50, 8))
    starts[0] = 0
    starts[3] = starts[2]  # an empty bag
    return torch.from_numpy(random.integers(0, IDS, 50)), torch.from_numpy(starts)


# nn.EmbeddingBag has weights for sums only.
@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
@pytest.mark.parametrize("bags", [fixed, ragged])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags(mode: str, bags: BagInput, padding: int | None, weighted: bool) -> None:
    store = LocalStore()
    ours = SparseEmbeddingBag("a", 4, mode=mode, padding_idx=padding, **SETTINGS)
    bind(ours, store)
    theirs = nn.EmbeddingBag(IDS, 4, mode=mode, padding_idx=padding, sparse=not weighted)
    with torch.no_grad():
        theirs.weight.copy_(rows_of(ours))
    arguments = bags(np.random.default_rng(4))
    weights = [torch.rand(arguments[0].shape, generator=torch.Generator().manual_seed(2))
               .requires_grad_() for _ in range(2)]  # fmt: skip
    if weighted:
        out = ours(*arguments, weights=weights[0])
        wanted = theirs(*arguments, per_sample_weights=weights[1])
    else:
        out, wanted = ours(*arguments), theirs(*arguments)
    torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-6)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    out.backward(upstream)
    wanted.backward(upstream)
    expected = theirs.weight.grad.to_dense() if theirs.sparse else theirs.weight.grad
    found = dense_gradient(ours.take_gradients()["a"])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    if weighted:
        kept = slice(None) if padding is None else arguments[0] != padding
        torch.testing.assert_close(weights[0].grad[kept], weights[1].grad[kept])


@pytest.mark.parametrize("weighted", [False, True])
def test_mean_and_sqrtn_agree_with_their_formulas_bag_by_bag(weighted: bool) -> None:
    ids, starts = ragged(np.random.default_rng(4))
    weights = torch.rand(50) + 0.1 if weighted else torch.ones(50)
    for mode in ("mean", "sqrtn"):
        ours = SparseEmbeddingBag("a", 4, mode=mode, padding_idx=3, **SETTINGS)
        out = ours(ids, starts, weights if weighted else None)
        rows = rows_of(ours)
        for number, (begin, end) in enumerate(zip(starts, [*starts[1:], 50], strict=True)):
            part, w = ids[begin:end], weights[begin:end]
            part, w = part[part != 3], w[part != 3]
            below = w.sum() if mode == "mean" else (w * w).sum().sqrt()
            wanted = (rows[part] * w[:, None]).sum(0) / below if len(part) else torch.zeros(4)
            torch.testing.assert_close(out[number].detach(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loop", ["plain", "steps", "planned steps"])
def test_training_with_sgd_gives_the_model_that_torch_gives(loop: str) -> None:
    class Net(nn.Module):
        def __init__(self, rows: nn.Module, top: nn.Linear) -> None:
            super().__init__()
            self.rows, self.top = rows, top

        def forward(self, batch: Batch) -> torch.Tensor:
            return self.top(torch.tanh(self.rows(batch)))

    torch.manual_seed(8)
    embeddings, store = Ours(), LocalStore()
    bind(embeddings, store)
    top = nn.Linear(31, 1)
    twin_top = nn.Linear(31, 1)
    twin_top.load_state_dict(top.state_dict())
    ours, theirs = Net(embeddings, top), Net(Theirs(embeddings), twin_top)
    optimizers = [torch.optim.SGD(ours.parameters(), lr=0.1),
                  torch.optim.SGD(theirs.parameters(), lr=0.1)]  # fmt: skip
    for _ in range(10):
        for batch in batches(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            theirs(batch).square().mean().backward()
            if loop == "plain":
                ours(batch).square().mean().backward()
                apply_gradients(ours)
            else:
                with step_of(store, ours, batch, loop == "planned steps") as step:
                    ours(batch).square().mean().backward()
                store.push_many(step.gradients(), unique=True)
            for optimizer in optimizers:
                optimizer.step()
    assert len(sparse_modules(ours)) == 3
    for table in ("a", "b"):
        mine = rows_of(getattr(embeddings, table))
        torch.testing.assert_close(mine, getattr(theirs.rows, table).weight, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(top.weight, twin_top.weight, rtol=1e-6, atol=1e-6)
