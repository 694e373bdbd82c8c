"""Products with weight matrices, computed by oneDNN where it is faster than torch's default.

torch multiplies float32 matrices with MKL, which uses AVX2 on AMD processors even if they have
AVX-512. oneDNN, which is part of torch as well, uses AVX-512 on all of them: twice as fast on Zen
5. Which one is faster is measured once per process; `SPARSEFLEET_MATRIX_PRODUCTS` overrides that.
Results differ in the last bits, as between two processors.

Only training uses oneDNN: products without gradients, as in evaluation and serving, stay with
torch, so both compute the same predictions.

In shapes, B is the number of rows of the input, K their width, and N the width of the output.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.errors import ConfigError

__all__ = [
    "are_by_onednn",
    "are_trained",
    "has_code",
    "is_large",
    "is_recorded",
    "linear",
    "multiply",
    "num_rows",
    "product_of",
]

_MIN_MULTIPLICATIONS = 3_000_000
"""Below this, what is saved is less than the 60 us that Python needs in forward and backward."""
_MIN_WIDTH = 16
"""oneDNN has no advantage if a matrix is narrower than its vectors."""
_MIN_ADVANTAGE = 1.25
"""oneDNN must be this much faster, so that noise does not change the choice from run to run."""
_MAX_ROW_COUNTS = 8
"""oneDNN compiles and keeps code for each shape, about 1.5 MB for a product and its gradients. For
each shape of a weight, only the first few values of B get that; ragged inputs have a new B in
nearly every batch.
"""
_CHOICES = ("auto", "torch", "onednn")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, like `torch.nn.functional.linear`.

    x: float32[..., K], weight: float32[N, K], bias: float32[N].
    """
    if not _suits_onednn(x, weight, bias) or weight.shape[1] != x.shape[-1]:
        return functional.linear(x, weight, bias)
    return _apply(x, weight, bias, False)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight + bias``. x: float32[..., K], weight: float32[K, N], bias: float32[N]."""
    if not _suits_onednn(x, weight, bias) or weight.shape[0] != x.shape[-1]:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    return _apply(x, weight, bias, True)


@cache
def are_by_onednn() -> bool:
    """Return whether large products in training are computed by oneDNN; measured on first use."""
    choice = os.environ.get("SPARSEFLEET_MATRIX_PRODUCTS") or "auto"
    if choice not in _CHOICES:
        raise ConfigError(
            f"SPARSEFLEET_MATRIX_PRODUCTS must be 'auto', 'torch' or 'onednn', got {choice!r}"
        )
    if choice == "auto":
        has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        return has_avx512 and has_mkl and _has_onednn() and _is_faster()
    if choice == "onednn" and not _has_onednn():
        raise ConfigError(
            "SPARSEFLEET_MATRIX_PRODUCTS is 'onednn', but this build of torch has no oneDNN: set "
            "it to 'auto' or 'torch'"
        )
    return choice == "onednn"


def _has_onednn() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_built and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_faster() -> bool:
    x, weight = torch.ones(128, 256), torch.ones(256, 256)
    with torch.no_grad():
        by_torch_s = _fastest_s(lambda: functional.linear(x, weight))
        by_onednn_s = _fastest_s(lambda: product_of(x, weight))
    return by_torch_s >= _MIN_ADVANTAGE * by_onednn_s


def _fastest_s(product: Callable[[], Tensor], repeats: int = 20) -> float:
    """Return the shortest duration: all others were disturbed by something."""
    durations = []
    for _ in range(repeats):
        begun = perf_counter()
        product()
        durations.append(perf_counter() - begun)
    return min(durations)


def _suits_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        not is_recorded(x)
        and x.dim() > 1
        and weight.dim() == 2
        and is_large(num_rows(x), weight)
        and (bias is None or bias.shape == (weight.numel() // x.shape[-1],))
        and are_trained(x, weight, bias)
        and has_code(num_rows(x), weight.shape)
    )


def num_rows(x: Tensor) -> int:
    """Return B of float32[..., K], the product of the dimensions before K."""
    return x.numel() // (x.shape[-1] or 1)


def is_large(rows: int, weight: Tensor) -> bool:
    """Return whether a product is large enough for oneDNN."""
    return rows * weight.numel() >= _MIN_MULTIPLICATIONS and min(weight.shape) >= _MIN_WIDTH


def are_trained(x: Tensor, *parameters: Tensor | None) -> bool:
    """Return whether autograd records a product of these tensors, all float32, and oneDNN is on."""
    tensors = [x, *(tensor for tensor in parameters if tensor is not None)]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
        and all(map(_is_plain, tensors))
        and not torch.is_autocast_enabled("cpu")
        and are_by_onednn()
    )


_row_counts: dict[torch.Size, frozenset[int]] = {}
_row_counts_lock = threading.Lock()


def has_code(rows: int, shape: torch.Size) -> bool:
    """Return whether oneDNN has, or may compile, code for `rows` rows and weights of this shape."""
    if rows in _row_counts.get(shape, ()):
        return True
    with _row_counts_lock:
        found = _row_counts.get(shape, frozenset())
        if len(found) < _MAX_ROW_COUNTS:
            found = _row_counts[shape] = found | {rows}
        return rows in found


def _is_plain(tensor: Tensor) -> bool:
    is_float = tensor.dtype is torch.float32
    return is_float and tensor.is_cpu and tensor.layout is torch.strided


def is_recorded(x: Tensor) -> bool:
    """Return whether torch compiles, traces or transforms what is computed, or `x` is no value."""
    return (
        type(x) not in (Tensor, nn.Parameter)
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _apply(x: Tensor, weight: Tensor, bias: Tensor | None, is_transposed: bool) -> Tensor:
    apply: Callable[..., Tensor] = _Product.apply
    if x.dim() == 2:
        return apply(x, weight, bias, is_transposed)
    out = apply(x.flatten(0, -2), weight, bias, is_transposed)
    return out.view(*x.shape[:-1], out.shape[1])


def product_of(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, computed by oneDNN; not differentiable."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
        _with_strides(x), _with_strides(weight), bias, "none", [], ""
    )
    return product


def _with_strides(matrix: Tensor) -> Tensor:
    """Return the matrix, copied unless its rows or its columns are contiguous."""
    is_usable = matrix.is_contiguous() or matrix.t().is_contiguous()
    return matrix if is_usable else matrix.contiguous()


class _Product(torch.autograd.Function):
    """A product with a weight matrix, float32[N, K], or float32[K, N] if `is_transposed`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, is_transposed: bool
    ) -> Tensor:
        # As in torch, a tensor that no gradient needs may be modified before the backward pass.
        x_is_trained, weight_is_trained, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if weight_is_trained else None, weight if x_is_trained else None)
        ctx.is_transposed = is_transposed
        return product_of(x, weight.t() if is_transposed else weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # With create_graph=True, the gradients need gradients, which torch's products have.
        product = _differentiable if torch.is_grad_enabled() else product_of
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = product(gradient, weight if ctx.is_transposed else weight.t())
        if ctx.needs_input_grad[1]:
            if ctx.is_transposed:
                of_weight = product(x.t(), gradient.t())
            else:
                of_weight = product(gradient.t(), x.t())
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias, None


def _differentiable(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()
