"""Makes the layers of a model use the faster matrix products, while it is trained."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.nn.matrix_products import linear

__all__ = ["reset_layers", "speed_up_layers"]


def speed_up_layers(model: nn.Module) -> None:
    """Make the model's `nn.Linear` layers use `linear`, until `reset_layers`.

    Only their `forward` is replaced; copies of the model are sped up too. Subclasses, and modules
    with a `forward` of their own, stay as they are.
    """
    for module in model.modules():
        replacement = _REPLACEMENTS.get(type(module))
        if replacement is not None and _has_forward_of_torch(module):
            module.forward = MethodType(replacement, module)


def reset_layers(model: nn.Module) -> None:
    """Undo `speed_up_layers`."""
    for module in model.modules():
        if _is_sped_up(module):
            del module.__dict__["forward"]


# The replacements must be called `forward`, because a bound method is pickled by its name.
# TorchScript compiles only this form of `if` without the other branch.


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return functional.linear(input, self.weight, self.bias)
        else:  # noqa: RET505
            return linear(input, self.weight, self.bias)


_FORWARDS: dict[type[nn.Module], Any] = {kind: kind.forward for kind in (nn.Linear,)}
_REPLACEMENTS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear.forward,
}


def _has_forward_of_torch(module: nn.Module) -> bool:
    kind = type(module)
    return "forward" not in module.__dict__ and kind.forward is _FORWARDS.get(kind)


def _is_sped_up(module: nn.Module) -> bool:
    replaced = getattr(module.__dict__.get("forward"), "__func__", None)
    return replaced is not None and replaced is _REPLACEMENTS.get(type(module))
