from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefleet import Trainer, optim
from sparsefleet.nn import SparseEmbedding
from sparsefleet.nn.fast_layers import reset_layers, speed_up_layers

pytestmark = pytest.mark.usefixtures("products")
ROWS, WIDE, NARROW = 160, 200, 120  # 3.8 million multiplications


def random(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDE, NARROW), nn.ReLU(), nn.Linear(NARROW, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x).squeeze(1)
        return out


def test_layers_are_sped_up_until_they_are_reset(products: list[tuple[int, ...]]) -> None:
    model, x = TwoLayers(), random(ROWS, WIDE)
    before = model(x)
    assert products == []
    speed_up_layers(model)
    speed_up_layers(model)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
    assert len(products) == 1
    copied = copy.deepcopy(model)
    copied.layers[0].weight.data.zero_()
    copied.layers[0].bias.data.zero_()
    assert not copied.layers[0](x).any()
    assert len(products) == 2
    reset_layers(model)
    assert torch.equal(model(x), before)
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_can_be_pickled_scripted_traced_exported_and_compiled_while_sped_up() -> None:
    model, x = TwoLayers(), random(ROWS, WIDE)
    expected = model(x)
    speed_up_layers(model)
    again = pickle.loads(pickle.dumps(model))
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
    exported = torch.export.export(model, (x,)).module()
    compiled = torch.compile(model, backend="eager")
    for made in (again, scripted, traced, exported, compiled):
        torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-4)
        made(x).sum().backward()


def test_a_subclass_and_a_replaced_forward_stay_as_they_are() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = nn.Sequential(Scaled(WIDE, NARROW), nn.ReLU(), nn.Linear(NARROW, NARROW))
    own = model[2].forward = lambda given: given + 7  # type: ignore[method-assign]
    x = random(ROWS, WIDE)
    expected = model(x)
    speed_up_layers(model)
    assert "forward" not in model[0].__dict__
    assert model[2].forward is own
    torch.testing.assert_close(model(x), expected)
    reset_layers(model)
    assert model[2].forward is own


@pytest.mark.parametrize("threads", [1, 2])
def test_trainer_trains_with_onednn_and_predicts_with_torch(
    threads: int, products: list[tuple[int, ...]]
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbedding("ids", WIDE // 4)
            self.top = TwoLayers()

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.top(self.rows(ids).flatten(1))
            return out

    model = Model()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (ROWS, 4)))
    batch = ids, (ids[:, 0] % 2).float()
    with Trainer(model, nn.BCEWithLogitsLoss(), optim.Adam(lr=0.01), threads=threads) as trainer:
        trainer.fit([batch] * 6)
        assert products.count((ROWS, WIDE, NARROW)) == 6
        products.clear()
        trainer.evaluate([batch])
        trainer.predict([ids])
        assert products == []
    assert not any("forward" in module.__dict__ for module in model.modules())
