"""Training on servers and workers compared with the same training in one process.

Letters: W workers, S servers, B examples in a batch, F slots.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.support.workers import run_workers
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag

Batch = tuple[torch.Tensor, torch.Tensor]  # ids int64[B, F], labels float32[B]

STEPS, B, F = 12, 8, 3
SEEDING = threading.Lock()  # all threads share torch's generator
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


class Net(nn.Module):
    """Two tables, one of them looked up twice, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.users = SparseEmbedding("users", 4, seed=1)
        self.ads = SparseEmbedding("ads", 4, seed=2)
        self.bags = SparseEmbeddingBag("ads", 4, mode="mean", seed=2)
        self.layers = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = [self.users(ids[:, 0]), self.ads(ids[:, 1]), self.bags(ids[:, 1:])]
        return self.layers(torch.cat(rows, dim=1)).squeeze(1)


def batches(seed: int, count: int = STEPS) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [
        (
            torch.from_numpy(rng.integers(0, 20, (B, F))),
            torch.from_numpy(rng.integers(0, 2, B).astype(np.float32)),
        )
        for _ in range(count)
    ]


def train(role: RoleInfo, mode: object, data: Sequence[Batch], optimizer: str) -> list[np.ndarray]:
    """The dense parameters and the rows of both tables after training."""
    with SEEDING:
        net = Net()
    distributed = DistributedModel(
        net,
        OPTIMIZERS[optimizer](net.parameters()),
        mode,  # type: ignore[arg-type]
        role=role,
        wait_s=60.0,
    )
    distributed.start()
    for ids, labels in data:
        with distributed.step(batch=(ids, labels)):
            nn.functional.binary_cross_entropy_with_logits(net(ids), labels).backward()
    distributed.leave()
    distributed.settle()
    keys = np.arange(20)
    found = [
        distributed.store.pull("users", keys, train=False),
        distributed.store.pull("ads", keys, train=False),
        distributed.flat.arrays["dense"].copy(),
    ]
    distributed.meeting.barrier()
    distributed.close()
    return found


def local(data: Sequence[Batch], optimizer: str) -> list[np.ndarray]:
    return train(RoleInfo(kind="local"), "local", data, optimizer)


def assert_close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sync_equals_one_process_on_the_concatenated_batch(
    num_workers: int, num_servers: int, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [batches(seed) for seed in range(num_workers)]
    whole = [
        (torch.cat([part[i][0] for part in parts]), torch.cat([part[i][1] for part in parts]))
        for i in range(STEPS)
    ]
    results = run_workers(
        lambda role: train(role, "sync", parts[role.index], optimizer),
        num_workers=num_workers,
        num_servers=num_servers,
        monkeypatch=monkeypatch,
    )
    wanted = local(whole, optimizer)
    for found in results:
        assert_close(found, wanted)


def test_sync_continues_without_a_worker_that_has_less_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [batches(0), batches(1, count=5)]
    whole = [
        (torch.cat([parts[0][i][0], parts[1][i][0]]), torch.cat([parts[0][i][1], parts[1][i][1]]))
        if i < 5
        else parts[0][i]
        for i in range(STEPS)
    ]
    results = run_workers(
        lambda role: train(role, "sync", parts[role.index], "sgd"),
        num_workers=2,
        num_servers=2,
        monkeypatch=monkeypatch,
    )
    wanted = local(whole, "sgd")
    for found in results:
        assert_close(found, wanted)


@pytest.mark.parametrize("mode", ["half_async", "hybrid"])
def test_mode_with_one_worker_and_thread_equals_local(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(0)
    [found] = run_workers(
        lambda role: train(role, mode, data, "sgd"),
        num_workers=1,
        num_servers=2,
        monkeypatch=monkeypatch,
    )
    if mode == "half_async":
        assert_close(found, local(data, "sgd"))
    else:  # rows may be one step old, so values are close but not equal
        for ours, theirs in zip(found, local(data, "sgd"), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_geo_with_one_worker_equals_local_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsefleet.modes import GeoConfig

    data = batches(0)
    [found] = run_workers(
        lambda role: train(role, GeoConfig(push_interval_steps=5), data, "sgd"),
        num_workers=1,
        num_servers=2,
        monkeypatch=monkeypatch,
    )
    assert_close(found, local(data, "sgd"))


def test_local_training_equals_plain_torch() -> None:
    """With rows that start at zero, nn.Embedding computes the same."""
    from sparsefleet.store import Constant

    torch.manual_seed(0)
    head = nn.Linear(4, 1)
    twin_head = nn.Linear(4, 1)
    twin_head.load_state_dict(head.state_dict())
    model = nn.Sequential(SparseEmbedding("ads", 4, initializer=Constant(0.5)), head)
    table = nn.Embedding(20, 4)
    nn.init.constant_(table.weight, 0.5)
    twin = nn.Sequential(table, twin_head)
    twin_optimizer = torch.optim.Adagrad(twin.parameters(), lr=0.1)
    distributed = DistributedModel(
        model, optim.Adagrad(lr=0.1), "local", role=RoleInfo(kind="local")
    )
    distributed.start()
    for ids, labels in batches(7):
        with distributed.step(batch=ids):
            loss = nn.functional.mse_loss(model(ids[:, 0]).squeeze(1), labels)
            loss.backward()
        twin_optimizer.zero_grad()
        twin_loss = nn.functional.mse_loss(twin(ids[:, 0]).squeeze(1), labels)
        twin_loss.backward()
        twin_optimizer.step()
        assert loss.item() == pytest.approx(twin_loss.item(), rel=1e-5)
    np.testing.assert_allclose(
        head.weight.detach().numpy(), twin_head.weight.detach().numpy(), rtol=1e-5, atol=1e-6
    )
    distributed.close()
