"""Makes the layers of a model use the faster matrix products, while it is trained."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from sparsefleet.nn.layer_chain import Layer, may_be_chained, pass_through, suit_onednn
from sparsefleet.nn.matrix_products import is_recorded, linear

__all__ = ["reset_layers", "speed_up_layers"]


def speed_up_layers(model: nn.Module) -> None:
    """Make the model's `nn.Linear` and `nn.Sequential` faster, until `reset_layers`.

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
        # The forward tells, not the type: parametrizing a module changes its type.
        if _replaced_forward(module) in _REPLACEMENTS.values():
            del module.__dict__["forward"]


# The replacements must be called `forward`, because a bound method is pickled by its name.
# TorchScript skips the other branch only if `if` and `else` are written this way.


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return functional.linear(input, self.weight, self.bias)
        else:  # noqa: RET505
            return linear(input, self.weight, self.bias)


class _Sequential(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            for module in self:
                input = module(input)  # noqa: A001
            return input
        else:  # noqa: RET505
            return _call_all(list(self), input)


_FORWARDS: dict[type[nn.Module], Any] = {
    kind: kind.forward for kind in (nn.Linear, nn.ReLU, nn.Sequential)
}
_REPLACEMENTS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear.forward,
    nn.Sequential: _Sequential.forward,
}


def _has_forward_of_torch(module: nn.Module) -> bool:
    kind = type(module)
    if kind.forward is not _FORWARDS.get(kind):
        return False
    # Pickle stores a bound method by its name: a module that was sped up, once unpickled, has its
    # class's own forward in its __dict__.
    own = module.__dict__.get("forward")
    return own is None or own == MethodType(kind.forward, module)


def _is_sped_up(module: nn.Module) -> bool:
    replaced = _replaced_forward(module)
    return replaced is not None and replaced is _REPLACEMENTS.get(type(module))


def _replaced_forward(module: nn.Module) -> object:
    return getattr(module.__dict__.get("forward"), "__func__", None)


def _call_all(modules: list[nn.Module], x: Tensor) -> Tensor:
    """Call the modules one after another, consecutive layers at once where that is faster."""
    place = 0
    while place < len(modules):
        end, layers = _layers_from(modules, place)
        if len(layers) > 1 and not is_recorded(x) and suit_onednn(x, layers):
            x = pass_through(x, layers)
        else:
            end = max(end, place + 1)
            for module in modules[place:end]:
                x = module(x)
        place = end
    return x


def _layers_from(modules: list[nn.Module], begin: int) -> tuple[int, list[Layer]]:
    """Return the layers that start at a place, and the place behind the last of them."""
    layers: list[Layer] = []
    place = begin
    while place < len(modules) and _is_sped_up(module := modules[place]) and not _has_hooks(module):
        if not isinstance(module, nn.Linear):
            break
        if not (may_be_chained(module.weight) and may_be_chained(module.bias)):
            break
        place += 1
        has_relu = place < len(modules) and _is_relu(modules[place])
        place += has_relu
        layers.append(Layer(module.weight, module.bias, has_relu))
    return place, layers


def _is_relu(module: nn.Module) -> bool:
    return type(module) is nn.ReLU and _has_forward_of_torch(module) and not _has_hooks(module)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
