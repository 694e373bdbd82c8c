from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparsefleet.errors import ConfigError
from sparsefleet.nn import matrix_products
from sparsefleet.nn.matrix_products import linear, multiply

pytestmark = pytest.mark.usefixtures("products")
ROWS, WIDE, NARROW = 160, 200, 120  # 3.8 million multiplications


def random(*shape: int, trained: bool = True) -> Tensor:
    return torch.randn(shape, requires_grad=trained)


def gradients(function: Callable[..., Tensor], *given: Tensor | None) -> list[Tensor | None]:
    """Return the output, and the gradients of each argument."""
    copies = [
        one if one is None else one.detach().requires_grad_(one.requires_grad) for one in given
    ]
    out = function(*copies)
    out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
    return [out, *(None if one is None else one.grad for one in copies)]


def assert_same(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(ROWS, WIDE), (4, ROWS // 4, WIDE), (2, 4, ROWS // 8, WIDE)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_and_its_gradients_equal_those_of_torch(
    shape: tuple[int, ...], has_bias: bool, products: list[tuple[int, ...]]
) -> None:
    given = random(*shape), random(NARROW, WIDE), random(NARROW) if has_bias else None
    assert_same(gradients(linear, *given), gradients(functional.linear, *given))
    assert products == [(ROWS, WIDE, NARROW), (ROWS, NARROW, WIDE), (NARROW, ROWS, WIDE)]


@pytest.mark.parametrize("has_bias", [True, False])
def test_multiply_and_its_gradients_equal_those_of_torch(
    has_bias: bool, products: list[tuple[int, ...]]
) -> None:
    given = random(ROWS, WIDE), random(WIDE, NARROW), random(NARROW) if has_bias else None

    def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight if bias is None else x @ weight + bias

    assert_same(gradients(multiply, *given), gradients(by_torch, *given))
    assert len(products) == 3


@pytest.mark.parametrize(
    "trained", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_only_what_is_trained_gets_a_gradient(trained: tuple[bool, bool, bool]) -> None:
    shapes = (ROWS, WIDE), (NARROW, WIDE), (NARROW,)
    given = [random(*shape, trained=on) for shape, on in zip(shapes, trained, strict=True)]
    assert_same(gradients(linear, *given), gradients(functional.linear, *given))


@pytest.mark.parametrize("product", [linear, multiply])
@pytest.mark.parametrize("trained", [0, 1])
def test_what_no_gradient_needs_may_change_before_the_backward_pass(
    product: Callable[..., Tensor], trained: int
) -> None:
    given = [random(WIDE, WIDE, trained=place == trained) for place in range(2)]
    out = product(*given, random(WIDE))
    with torch.no_grad():
        given[trained].add_(1)
    out.sum().backward()
    assert given[trained].grad is not None


def test_inputs_and_gradients_may_be_laid_out_in_any_way(products: list[tuple[int, ...]]) -> None:
    wide, weight = random(WIDE, 2 * ROWS), random(2 * NARROW, WIDE)

    def ours(wide: Tensor, weight: Tensor) -> Tensor:
        return linear(wide.t()[::2], weight[::2]).sum().view(1)  # its gradient is one number

    def by_torch(wide: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(wide.t()[::2], weight[::2]).sum().view(1)

    assert_same(gradients(ours, wide, weight)[1:], gradients(by_torch, wide, weight)[1:])
    assert len(products) == 3


def test_gradients_of_gradients_equal_those_of_torch() -> None:
    x, weight, bias = random(ROWS, WIDE), 0.05 * random(NARROW, WIDE), random(NARROW)

    def penalty(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            loss = product(x, weight, bias).tanh().sum()
            (found,) = torch.autograd.grad(loss, x, create_graph=True)
            return found.square().sum(1)

        return of

    assert_same(
        gradients(penalty(linear), x, weight, bias),
        gradients(penalty(functional.linear), x, weight, bias),
    )


def test_small_products_and_those_without_gradients_stay_with_torch(
    products: list[tuple[int, ...]],
) -> None:
    x, weight = random(ROWS, WIDE), random(NARROW, WIDE)
    linear(x[:8], weight)
    linear(random(40_000, WIDE), random(2, WIDE))
    linear(x.detach(), weight.detach())
    linear(x[:0], weight)
    linear(x[0], weight)
    linear(x[:, :0], weight[:, :0])
    linear(x.double(), weight.double())
    with torch.no_grad():
        linear(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype is torch.bfloat16
    assert products == []


def test_inputs_with_ever_new_lengths_do_not_fill_the_memory_with_compiled_code(
    products: list[tuple[int, ...]],
) -> None:
    weight = random(NARROW, WIDE)
    for rows in range(ROWS, ROWS + 20):
        linear(random(rows, WIDE), weight)
    assert [shape[0] for shape in products] == list(range(ROWS, ROWS + 8))
    linear(random(ROWS, WIDE), weight)  # the first ones stay
    linear(random(ROWS + 20, WIDE), random(NARROW + 1, WIDE))  # and other layers have their own
    assert [shape[0] for shape in products[8:]] == [ROWS, ROWS + 20]


def test_a_wrong_shape_is_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="160x200 and 300x120"):
        linear(random(ROWS, WIDE), random(NARROW, 300))
    with pytest.raises(RuntimeError, match="160x200 and 300x120"):
        multiply(random(ROWS, WIDE), random(300, NARROW))
    for bias in (random(NARROW + 1), random(NARROW).double()):
        with pytest.raises(RuntimeError):
            linear(random(ROWS, WIDE), random(NARROW, WIDE), bias)


def test_transforms_of_torch_still_work() -> None:
    x, weight = random(ROWS, WIDE), random(NARROW, WIDE)

    def loss(weight: Tensor) -> Tensor:
        return linear(x, weight).square().mean()

    torch.testing.assert_close(
        torch.func.grad(loss)(weight), torch.autograd.grad(loss(weight), weight)[0]
    )
    batched = torch.func.vmap(lambda one: linear(one, weight))(torch.stack([x, x]))
    torch.testing.assert_close(batched[1], functional.linear(x, weight))


@pytest.mark.parametrize(("choice", "expected"), [("torch", False), ("onednn", True)])
def test_environment_variable_decides(
    choice: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_MATRIX_PRODUCTS", choice)
    matrix_products.are_by_onednn.cache_clear()
    assert matrix_products.are_by_onednn() is expected


def test_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_MATRIX_PRODUCTS", "mkl")
    matrix_products.are_by_onednn.cache_clear()
    with pytest.raises(ConfigError, match="must be 'auto', 'torch' or 'onednn', got 'mkl'"):
        linear(random(ROWS, WIDE), random(NARROW, WIDE))


@pytest.mark.parametrize(("onednn_s", "expected"), [(1.0, False), (0.9, False), (0.5, True)])
def test_auto_takes_onednn_only_if_it_is_clearly_faster(
    onednn_s: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0, onednn_s])
    monkeypatch.setattr(matrix_products, "_fastest_s", lambda _: next(times))
    assert matrix_products._is_faster() is expected
