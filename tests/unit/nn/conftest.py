from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from sparsefleet.nn import matrix_products


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Choose oneDNN, and yield the shapes (B, K, N) of its products as they are computed."""
    if not matrix_products._has_onednn():
        pytest.skip("this build of torch has no oneDNN")
    shapes: list[tuple[int, ...]] = []
    product = matrix_products.product_of

    def recorded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*x.shape, weight.shape[0]))
        return product(x, weight, bias)

    monkeypatch.setattr(matrix_products, "product_of", recorded)
    monkeypatch.setenv("SPARSEFLEET_MATRIX_PRODUCTS", "onednn")
    monkeypatch.setattr(matrix_products, "_row_counts", {})
    matrix_products.are_by_onednn.cache_clear()
    yield shapes
    matrix_products.are_by_onednn.cache_clear()
