"""int32 ids, which torch.nn.Embedding takes as well, train the same rows as int64 ids."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import Predictor, Trainer, optim
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.nn.binding import bind
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore
from sparsefleet.train import TrainerConfig


class Pairs(nn.Module):
    """Scores two ids, one of them a column of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = SparseEmbedding("ids", 4)
        self.bags = SparseEmbeddingBag("bags", 4, mode="mean")

    def forward(self, user, item, tags):
        shared = self.ids(user) + self.ids(item[:, 1]) + self.bags(tags)
        return shared.sum(1)


def batch(dtype: torch.dtype) -> tuple:
    user = torch.tensor([3, -1, 2**31 - 1, 3], dtype=dtype)
    item = torch.tensor([[9, 1], [9, 2], [9, -(2**31)], [9, 3]], dtype=dtype)
    tags = (torch.arange(6, dtype=dtype), torch.tensor([0, 2, 2, 5], dtype=dtype))
    return {"user": user, "item": item, "tags": tags}, torch.tensor([1.0, 0.0, 1.0, 0.0])


def trained(dtype: torch.dtype) -> Trainer:
    trainer = Trainer(
        Pairs(), nn.BCEWithLogitsLoss(), optim.SGD(lr=0.5), config=TrainerConfig(quiet=True)
    )
    trainer.fit([batch(dtype)] * 5)
    return trainer


def test_int32_ids_train_the_rows_of_the_same_int64_ids() -> None:
    with trained(torch.int32) as narrow, trained(torch.int64) as wide:
        scores = narrow.predict([batch(torch.int32)])
        torch.testing.assert_close(scores, wide.predict([batch(torch.int64)]), rtol=0, atol=0)
        torch.testing.assert_close(scores, narrow.predict([batch(torch.int64)]), rtol=0, atol=0)


def test_int32_ids_are_planned_ahead_as_int64_ids_are() -> None:
    model, store = Pairs(), LocalStore()
    bind(model, store)
    first, _ = batch(torch.int32)
    with StepRows(lambda keys, **how: store.pull_many(keys, **how)[0]) as step:
        model(**first).sum().backward()
    lookups = LookupPlan.learn(step, first).lookups(batch(torch.int32)[0])
    assert lookups is not None
    assert [lookup.ids.tolist() for lookup in lookups] == [
        [3, -1, 2**31 - 1, 3],
        [1, 2, -(2**31), 3],
        [0, 1, 2, 3, 4, 5],
    ]
    assert {lookup.ids.dtype for lookup in lookups} == {torch.int64}


def test_int64_views_of_int32_pairs_look_up_the_64_bit_ids() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = SparseEmbedding("ids", 2)

        def forward(self, halves):  # int32[N, 2], the halves of 64-bit ids
            return self.ids(halves.view(torch.int64).squeeze(1)).sum(1)

    wide = torch.tensor([2**32 + 5, 2 * 2**32 + 6, 3 * 2**32 + 7])
    data = [(wide.view(torch.int32).view(3, 2), torch.ones(3))] * 4
    with Trainer(
        Halves(), nn.MSELoss(), optim.SGD(lr=0.1), config=TrainerConfig(quiet=True)
    ) as trainer:
        trainer.fit(data)
        keys = np.concatenate([part.keys for part in trainer.model.ids.store.rows("ids")])
    assert sorted(keys.tolist()) == wide.tolist()


@pytest.mark.parametrize("exported", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_export_of_either_type_predicts_what_the_trainer_does(
    exported: torch.dtype, tmp_path: Path
) -> None:
    with trained(exported) as trainer:
        trainer.export(tmp_path / "export", batch(exported), onnx=False)
        wanted = trainer.predict([batch(exported)])
    predictor = Predictor(tmp_path / "export")
    inputs, _ = batch(torch.int32)
    torch.testing.assert_close(torch.from_numpy(predictor.predict(inputs)), wanted)
