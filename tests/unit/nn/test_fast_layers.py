from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefleet import Trainer, optim
from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.collective.gradient_exchange import GradientExchange
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


def several_layers(*, bias: bool = True, ends_with_relu: bool = False) -> nn.Sequential:
    """Two products for oneDNN, and one that is too narrow."""
    layers = [
        nn.Linear(WIDE, NARROW, bias=bias),
        nn.ReLU(),
        nn.Linear(NARROW, WIDE, bias=bias),
        nn.Linear(WIDE, 3, bias=bias),
    ]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if ends_with_relu else []))


def outputs_and_gradients(
    model: nn.Module, x: Tensor, step: Callable[[Tensor], Tensor] = Tensor.sum
) -> list[Tensor | None]:
    """Return the output, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_(x.requires_grad)
    model.zero_grad()
    out = model(x)
    if out.requires_grad:
        step(out * torch.linspace(-1, 1, out.numel()).view(out.shape)).backward()
    return [out, x.grad, *(parameter.grad for parameter in model.parameters())]


def assert_same_when_sped_up(model: nn.Module, x: Tensor) -> None:
    expected = outputs_and_gradients(model, x)
    speed_up_layers(model)
    for one, other in zip(outputs_and_gradients(model, x), expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(ROWS, WIDE), (2, 4, ROWS // 8, WIDE)])
@pytest.mark.parametrize("ends_with_relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_consecutive_layers_compute_what_torch_computes_in_one_operation(
    shape: tuple[int, ...], ends_with_relu: bool, bias: bool, products: list[tuple[int, ...]]
) -> None:
    model = several_layers(bias=bias, ends_with_relu=ends_with_relu)
    assert_same_when_sped_up(model, random(*shape))
    assert len(products) == 6
    out = model(random(ROWS, WIDE))
    assert out.grad_fn.name() == "_ChainBackward"


@pytest.mark.parametrize("frozen", [(0,), (0, 2), (2,), (3,), (0, 2, 3)])
@pytest.mark.parametrize("x_is_trained", [True, False])
def test_frozen_layers_get_no_gradient(frozen: tuple[int, ...], x_is_trained: bool) -> None:
    model = several_layers()
    for place in frozen:
        model[place].requires_grad_(False)
    assert_same_when_sped_up(model, random(ROWS, WIDE).detach().requires_grad_(x_is_trained))


def test_layers_that_share_a_weight_get_the_sum_of_its_gradients() -> None:
    layer = nn.Linear(WIDE, WIDE)
    assert_same_when_sped_up(nn.Sequential(layer, nn.ReLU(), layer), random(ROWS, WIDE))


def test_gradients_of_gradients_of_consecutive_layers_equal_those_of_torch() -> None:
    layer = nn.Linear(WIDE, WIDE)
    model, x = (
        nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(WIDE, 3)),
        random(ROWS, WIDE),
    )
    inputs = [x, *model.parameters()]

    def second_gradients() -> list[Tensor]:
        out = (model(x) ** 2).sum()
        firsts = torch.autograd.grad(out, inputs, create_graph=True)
        norm = sum(first.square().sum() for first in firsts)
        return list(torch.autograd.grad(norm, inputs))

    expected = second_gradients()
    speed_up_layers(model)
    for one, other in zip(second_gradients(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_nan_passes_through_the_relu_as_in_torch() -> None:
    model = several_layers()
    speed_up_layers(model)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    assert model(random(ROWS, WIDE)).isnan().all()


def test_hooks_of_layers_are_called(products: list[tuple[int, ...]]) -> None:
    model, called = several_layers(), []
    speed_up_layers(model)
    model[1].register_forward_hook(lambda *_: called.append("forward"))
    model[2].register_full_backward_hook(lambda *_: called.append("backward"))
    model(random(ROWS, WIDE)).sum().backward()
    assert called == ["forward", "backward"]
    assert len(products) == 6
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: called.append("every"))
    try:
        model(random(ROWS, WIDE))
    finally:
        everywhere.remove()
    assert called.count("every") == len(model) + 1


def test_the_output_of_the_last_layer_may_be_changed_in_place() -> None:
    model, x = several_layers(), random(ROWS, WIDE)
    speed_up_layers(model)
    model(x).mul_(2).sum().backward()
    doubled = x.grad
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(doubled, 2 * x.grad)


def test_a_weight_changed_before_the_backward_pass_is_the_error_of_torch() -> None:
    model = several_layers()
    speed_up_layers(model)
    out = model(random(ROWS, WIDE)).sum()
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("frozen", [None, 0, 2])
def test_what_no_gradient_needs_may_change_before_the_backward_pass(frozen: int | None) -> None:
    model, x = several_layers(), random(ROWS, WIDE).detach()
    if frozen is not None:
        model[frozen].requires_grad_(False)
    expected = outputs_and_gradients(model, x)

    def change_and_sum(out: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in (model[0], model[2], model[3]):
                layer.bias.add_(1)
            model[0].weight.add_(1)
        return out.sum()

    speed_up_layers(model)
    for one, other in zip(outputs_and_gradients(model, x, change_and_sum), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_input_may_change_before_the_backward_pass_if_the_first_weight_is_frozen() -> None:
    model, x = several_layers(), random(ROWS, WIDE).detach()
    model[0].weight.requires_grad_(False)
    speed_up_layers(model)
    out = model(x).sum()
    x.add_(1)
    out.backward()
    assert model[0].bias.grad is not None


@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_gradients_of_gradients_do_not_use_changed_values(name: str) -> None:
    model = several_layers()
    speed_up_layers(model)
    out = model(random(ROWS, WIDE).detach()).sum()
    with torch.no_grad():
        model.get_parameter(name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation since the forward"):
        torch.autograd.grad(out, list(model.parameters()), create_graph=True)


def test_frozen_layers_and_computed_weights_are_not_chained() -> None:
    model, x = several_layers(), random(ROWS, WIDE)
    speed_up_layers(model)
    model[0].bias.requires_grad_(False)
    rest = model(x).grad_fn
    assert (rest.name(), rest.next_functions[0][0].name()) == ("_ChainBackward", "ReluBackward0")
    computed = {name: 2 * value for name, value in model.named_parameters()}
    out = torch.func.functional_call(model, computed, (x,))
    assert out.grad_fn.name() == "AddmmBackward0"


def test_mode_collective_gets_each_gradient_as_soon_as_it_is_computed(
    products: list[tuple[int, ...]],
) -> None:
    model, x, counts = several_layers(), random(ROWS, WIDE), []
    speed_up_layers(model)
    exchange = GradientExchange(model.named_parameters(), World.join(), CollectiveStrategy())
    exchange.attach()
    for layer in (model[2], model[0]):
        layer.weight.register_hook(lambda _: counts.append(len(products)))
    model(x).sum().backward()
    assert counts == [4, 6]
    exchange.close()
    assert model(x).grad_fn.name() == "_ChainBackward"


def test_layers_may_be_replaced_while_a_model_is_sped_up() -> None:
    model, x = several_layers(), random(ROWS, WIDE)
    speed_up_layers(model)
    model[1] = nn.Tanh()
    model[3] = nn.Linear(WIDE, 5)
    out = model(x)
    reset_layers(model)
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_layers_that_were_parametrized_while_sped_up_are_reset() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model, x = several_layers(), random(ROWS, WIDE)
    speed_up_layers(model)
    nn.utils.parametrize.register_parametrization(model[2], "weight", Doubled())
    out = model(x)
    reset_layers(model)
    assert not any("forward" in module.__dict__ for module in model.modules())
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_a_model_that_was_pickled_while_sped_up_can_be_sped_up_again(
    products: list[tuple[int, ...]],
) -> None:
    model, x = several_layers(), random(ROWS, WIDE)
    speed_up_layers(model)
    again = pickle.loads(pickle.dumps(model))
    again(x)
    assert products == []
    speed_up_layers(again)
    assert again(x).grad_fn.name() == "_ChainBackward"
    assert len(products) == 2
    reset_layers(again)
    assert not any("forward" in module.__dict__ for module in again.modules())


def test_wrong_widths_between_layers_are_the_error_of_torch() -> None:
    model = nn.Sequential(nn.Linear(WIDE, NARROW), nn.ReLU(), nn.Linear(NARROW + 1, WIDE))
    speed_up_layers(model)
    with pytest.raises(RuntimeError, match="160x120 and 121x200"):
        model(random(ROWS, WIDE))
    with pytest.raises(RuntimeError, match="160x3 and 200x120"):
        model(random(ROWS, 3))
    with pytest.raises(RuntimeError, match="160x0 and 200x120"):
        model(random(ROWS, 0))


def test_inputs_that_are_no_matrix_go_through_the_layers_one_by_one() -> None:
    class Names(nn.Module):
        def forward(self, names: list[str]) -> Tensor:
            return torch.ones(len(names), WIDE)

    model = nn.Sequential(Names(), *several_layers())
    speed_up_layers(model)
    assert model(["a", "b"]).shape == (2, 3)
    assert several_layers()(torch.ones(WIDE)).shape == (3,)
    speed_up_layers(model := several_layers())
    assert model(torch.ones(WIDE)).shape == (3,)
