"""Embedding bags over objects shaped like TorchRec's KeyedJaggedTensor."""

from __future__ import annotations

import pytest
import torch
from tests.unit.nn.counting_pull import CountingPull
from torch import nn

from sparsefleet import Trainer, TrainerConfig
from sparsefleet.errors import ShapeError
from sparsefleet.nn import SparseEmbeddingBag, bind
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore


class Jagged:
    """Two features of B bags each."""

    def __init__(
        self,
        values: list[int],
        offsets: list[int],
        weights: list[float] | None = None,
        keys: tuple[str, ...] = ("ads", "tags"),
    ) -> None:
        self._keys = keys
        self._values = torch.tensor(values)
        self._offsets = torch.tensor(offsets, dtype=torch.int32)  # TorchRec's offsets may be int32
        self._weights = None if weights is None else torch.tensor(weights)

    def keys(self) -> list[str]:
        return list(self._keys)

    def values(self) -> torch.Tensor:
        return self._values

    def offsets(self) -> torch.Tensor:
        return self._offsets

    def weights_or_none(self) -> torch.Tensor | None:
        return self._weights


def whole_table(module: SparseEmbeddingBag, num_ids: int) -> torch.Tensor:
    """The rows of ids 0 .. num_ids - 1."""
    return module(torch.arange(num_ids).view(-1, 1)).detach()


@pytest.mark.parametrize(
    ("mode", "weights"), [("sum", None), ("mean", None), ("sum", [0.5, 2.0, 1.0, 3.0, 0.25])]
)
def test_each_feature_is_reduced_as_torchs_bag_does(mode: str, weights: list[float] | None) -> None:
    module = SparseEmbeddingBag("ids", 3, mode=mode, seed=4)
    plain = nn.EmbeddingBag.from_pretrained(whole_table(module, 9), mode=mode)
    jagged = Jagged([1, 2, 3, 8, 8], [0, 2, 2, 3, 5], weights)
    given = None if weights is None else torch.tensor(weights)
    expected = plain(jagged.values(), jagged.offsets()[:-1].long(), given)  # [K * B, D]
    found = module(jagged)
    assert found.shape == (2, 2 * 3)
    torch.testing.assert_close(found[:, :3], expected[:2])
    torch.testing.assert_close(found[:, 3:], expected[2:])


def test_rows_are_planned_and_pulled_ahead() -> None:
    model, store = SparseEmbeddingBag("ids", 2), LocalStore()
    bind(model, store)
    pull = CountingPull(store)
    batch = {"features": Jagged([1, 2, 3], [0, 1, 2, 3, 3])}
    with StepRows(pull) as step:
        model(batch["features"])
    plan = LookupPlan.learn(step, batch)
    ahead = plan.lookups({"features": Jagged([7, 8], [0, 1, 1, 2, 2])})
    assert ahead is not None
    assert [lookup.ids.tolist() for lookup in ahead] == [[7, 8]]
    assert plan.lookups({"features": torch.tensor([1.0])}) is None


def test_offsets_that_do_not_fit_the_keys_are_refused() -> None:
    module = SparseEmbeddingBag("ids", 2)
    with pytest.raises(ShapeError, match=r"with 2 keys has 4 offsets, expected K \* B \+ 1"):
        module(Jagged([1, 2, 3], [0, 1, 2, 3]))
    with pytest.raises(ShapeError, match="pass it alone"):
        module(Jagged([1], [0, 1, 1]), torch.tensor([0]))


def test_a_trainer_takes_batches_of_them() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = SparseEmbeddingBag("ids", 4, mode="sum", optimizer=SGD(lr=1.0))
            self.out = nn.Linear(8, 1)

        def forward(self, features: Jagged) -> torch.Tensor:
            return self.out(self.ids(features)).squeeze(1)

    model = Model()
    batch = (Jagged([1, 2, 3, 4], [0, 1, 2, 3, 4]), torch.tensor([1.0, 0.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config) as trainer:
        history = trainer.fit([batch] * 30)
        assert trainer.evaluate([batch])["loss"] < 0.3
    assert history.examples == 60
