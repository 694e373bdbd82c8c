"""embedding_dots in every mode, compared with the same products by torch's operators.

One worker, so that the result does not depend on arrival order: the two agree up to rounding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.workers import run_workers
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.nn import SparseEmbedding, embedding_dots
from sparsefleet.store import Uniform

IDS, STEPS = 20, 6


class Net(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        made = {"initializer": Uniform(-1.0, 1.0), "optimizer": optim.SGD(lr=1.0)}
        self.users = SparseEmbedding("users", 6, seed=1, **made)
        self.films = SparseEmbedding("films", 6, seed=2, **made)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        if self.fused:
            scores = embedding_dots(self.users, users, self.films, films)
        else:
            scores = (self.users(users).unsqueeze(1) * self.films(films)).sum(-1)
        return nn.functional.softplus(scores * self.scale - 1.0).mean()


def train(role: RoleInfo, mode: str, fused: bool) -> list[np.ndarray]:
    net = Net(fused)
    distributed = DistributedModel(
        net, torch.optim.SGD(net.parameters(), lr=0.1), mode, role=role, wait_s=60.0
    )
    distributed.start()
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        batch = tuple(torch.from_numpy(rng.integers(0, IDS, shape)) for shape in ((8,), (8, 3)))
        with distributed.step(batch=batch):
            net(*batch).backward()
    distributed.leave()
    distributed.settle()
    found = [
        distributed.store.pull(table, np.arange(IDS), train=False) for table in ("users", "films")
    ]
    distributed.close()
    return found


@pytest.mark.parametrize("mode", ["local", "sync", "half_async", "async", "geo", "hybrid"])
def test_what_is_learned_is_that_of_plain_operators(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for fused in (True, False):
        if mode == "local":
            outcomes.append(train(RoleInfo(kind="local"), mode, fused))
            continue
        found = run_workers(
            lambda role, fused=fused: train(role, mode, fused),  # type: ignore[misc]
            num_workers=1,
            num_servers=2,
            monkeypatch=monkeypatch,
        )
        outcomes.append(found[0])
    for ours, plain in zip(*outcomes, strict=True):
        # These two read rows as they come; training moves some by 0.08.
        tolerance = 0.02 if mode in ("async", "hybrid") else 1e-5
        np.testing.assert_allclose(ours, plain, atol=tolerance)
