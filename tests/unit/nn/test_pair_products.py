from __future__ import annotations

import pytest
import torch

from sparsefleet.nn.pair_products import PairProducts


def pairs_one_by_one(vectors: torch.Tensor, *, lower: bool) -> torch.Tensor:
    count = vectors.shape[1]
    pairs = [(i, j) for i in range(count) for j in range(count) if (i > j if lower else i < j)]
    return torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i, j in pairs], dim=1)


@pytest.mark.parametrize("lower", [False, True])
def test_products_and_gradients_equal_those_of_each_pair(lower: bool) -> None:
    vectors = torch.randn(5, 4, 3, generator=torch.manual_seed(0), requires_grad=True)
    wanted = pairs_one_by_one(vectors, lower=lower)
    found = PairProducts(4, lower=lower)(vectors)
    weights = torch.randn_like(wanted)
    [wanted_gradient] = torch.autograd.grad(wanted, vectors, weights)
    [found_gradient] = torch.autograd.grad(found, vectors, weights)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found_gradient, wanted_gradient)


def test_products_have_second_derivatives() -> None:
    vectors = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PairProducts(3), vectors)
    assert torch.autograd.gradgradcheck(PairProducts(3), vectors)


def test_gradients_under_autocast_have_the_dtype_of_the_vectors() -> None:
    vectors = torch.randn(5, 4, 3, generator=torch.manual_seed(0), requires_grad=True)
    [wanted] = torch.autograd.grad(pairs_one_by_one(vectors, lower=False).sum(), vectors)
    with torch.autocast("cpu", torch.bfloat16):
        products = PairProducts(4)(vectors)
    assert products.dtype == torch.bfloat16
    [found] = torch.autograd.grad(products.sum(), vectors)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


def test_functional_gradients_equal_those_of_autograd() -> None:
    vectors = torch.randn(5, 4, 3, generator=torch.manual_seed(0), requires_grad=True)
    module = PairProducts(4)
    [wanted] = torch.autograd.grad(module(vectors).square().sum(), vectors)
    found = torch.func.grad(lambda given: module(given).square().sum())(vectors.detach())
    torch.testing.assert_close(found, wanted)


def test_one_vector_has_no_pairs() -> None:
    vectors = torch.randn(2, 1, 4, requires_grad=True)
    found = PairProducts(1)(vectors)
    assert found.shape == (2, 0)
    assert torch.autograd.grad(found.sum(), vectors)[0].abs().sum() == 0


def test_an_exported_graph_gives_the_same_products() -> None:
    products, vectors = PairProducts(3), torch.randn(4, 3, 2, requires_grad=True)
    exported = torch.export.export(products, (vectors,)).module()
    torch.testing.assert_close(exported(vectors), products(vectors))
