"""Linear layers and ReLUs, one after another, as a single operation for autograd.

Autograd calls Python for each product that oneDNN computes. One call for several layers saves about
60 us per layer and training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sparsefleet.nn import matrix_products
from sparsefleet.nn.matrix_products import has_code, is_large, num_rows

__all__ = ["Layer", "may_be_chained", "pass_through", "suit_onednn"]


class Layer(NamedTuple):
    """Computes ``x @ weight.T + bias`` of x, float32[..., K], and then its ReLU if `has_relu`."""

    weight: Tensor
    """float32[N, K]"""
    bias: Tensor | None
    """float32[N]"""
    has_relu: bool


def may_be_chained(parameter: Tensor | None) -> bool:
    """Return whether a layer with this weight or bias may be one of several in `pass_through`.

    All gradients of these layers become available only at their end, too late for a hook that
    sends them, or updates parameters, during the backward pass.
    """
    return parameter is None or (
        parameter.is_leaf and parameter.requires_grad and not parameter._post_accumulate_grad_hooks
    )


def suit_onednn(x: Tensor, layers: Sequence[Layer]) -> bool:
    """Return whether the layers need gradients, fit each other, and are large enough for oneDNN."""
    if x.dim() < 2 or not any(is_large(num_rows(x), layer.weight) for layer in layers):
        return False
    width = x.shape[-1]
    for weight, bias, _ in layers:
        if weight.dim() != 2 or weight.shape[1] != width:
            return False
        width = weight.shape[0]
        if bias is not None and bias.shape != (width,):
            return False
    return matrix_products.are_trained(x, *_parameters(layers))


def pass_through(x: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Return the output of the last layer: float32[..., K] -> float32[..., N].

    The caller must have checked `suit_onednn`, and `may_be_chained` for each parameter.
    """
    rows = num_rows(x)
    are_by_onednn = tuple(
        is_large(rows, layer.weight) and has_code(rows, layer.weight.shape) for layer in layers
    )
    have_relus = tuple(layer.has_relu for layer in layers)
    apply: Callable[..., Tensor] = _Chain.apply
    matrix = x if x.dim() == 2 else x.flatten(0, -2)
    out = apply(matrix, have_relus, are_by_onednn, *_parameters(layers))
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])


def _parameters(layers: Sequence[Layer]) -> list[Tensor | None]:
    return [parameter for layer in layers for parameter in layer[:2]]


class _Chain(torch.autograd.Function):
    """Layers whose weights and biases alternate in `parameters`; each of these gets a gradient.

    As in torch, tensors that no gradient needs are not saved, so they may be modified in place
    before the backward pass: biases, and the first weight if x gets no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        have_relus: tuple[bool, ...],
        are_by_onednn: tuple[bool, ...],
        *parameters: Any,
    ) -> Tensor:
        values = [x]  # the input of each layer and the last output
        weights, biases = parameters[::2], parameters[1::2]
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            product = matrix_products.product_of if are_by_onednn[place] else functional.linear
            out = product(values[-1], weight, bias)
            # oneDNN's own ReLU makes 0 of NaN, which would hide that training has diverged.
            values.append(out.relu_() if have_relus[place] else out)
        ctx.have_relus, ctx.are_by_onednn = have_relus, are_by_onednn
        # Without a ReLU, the last output is not needed, and others may change it in place.
        last = None if have_relus[-1] else -1
        first = weights[0] if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(first, *weights[1:], *values[:last])
        # Only gradients of gradients need these. They are leaves, so there is no reference cycle.
        ctx.unsaved = weights[0], *biases
        ctx.versions = _versions_of(ctx.unsaved)
        return values[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.have_relus)
        saved = ctx.saved_tensors
        weights, values = saved[:count], saved[count:]
        if torch.is_grad_enabled():  # with create_graph=True
            return _differentiable_gradients(ctx, values[0], weights[1:], gradient)
        x_is_needed, _, _, *are_needed = ctx.needs_input_grad
        gradients: list[Tensor | None] = [None] * (2 * count)  # of weights and biases in turn
        for place in reversed(range(count)):
            if ctx.have_relus[place]:
                gradient = torch.ops.aten.threshold_backward(gradient, values[place + 1], 0)
            product = matrix_products.product_of if ctx.are_by_onednn[place] else functional.linear
            if are_needed[2 * place]:
                gradients[2 * place] = product(gradient.t(), values[place].t())
            if are_needed[2 * place + 1]:
                gradients[2 * place + 1] = gradient.sum(0)
            if not x_is_needed and not any(are_needed[: 2 * place]):
                return None, None, None, *gradients
            gradient = product(gradient, weights[place].t())
        return gradient, None, None, *gradients


def _versions_of(tensors: Sequence[Tensor | None]) -> list[int | None]:
    """Return the number of changes in place of each tensor."""
    return [None if tensor is None else tensor._version for tensor in tensors]


def _differentiable_gradients(
    ctx: Any, x: Tensor, later_weights: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the results of `_Chain.backward` as torch computes them, differentiable again."""
    if _versions_of(ctx.unsaved) != ctx.versions:
        raise RuntimeError(
            "a bias or the weight of a layer in an nn.Sequential has been modified by an inplace "
            "operation since the forward pass; gradients with create_graph=True need it unchanged: "
            "modify it after the backward pass"
        )
    first, *biases = ctx.unsaved
    weights = (first, *later_weights)
    out = x
    inputs: list[Any] = [x, None, None]
    for weight, bias, has_relu in zip(weights, biases, ctx.have_relus, strict=True):
        # Layers may share a weight, but each of them has its own gradient.
        inputs += [weight.view_as(weight), None if bias is None else bias.view_as(bias)]
        out = functional.linear(out, *inputs[-2:])
        out = out.relu() if has_relu else out
    needed = [place for place, is_needed in enumerate(ctx.needs_input_grad) if is_needed]
    found = torch.autograd.grad(
        out, [inputs[place] for place in needed], gradient, create_graph=True
    )
    gradients: list[Tensor | None] = [None] * len(inputs)
    for place, one in zip(needed, found, strict=True):
        gradients[place] = one
    return tuple(gradients)
