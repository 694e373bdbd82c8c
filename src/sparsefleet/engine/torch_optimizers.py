"""Torch optimizers for parameters outside of tables, and a guard that decides who may step them.

In formulas, w is a value, g its gradient, and lr the learning rate. docs/tables.md lists all
formulas.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError

__all__ = ["DecayedAdagrad", "Ftrl", "TorchStepping", "torch_optimizer"]
# Torch's own classes, and their settings by field of the description.
_TORCH: dict[type[optim.Optimizer], tuple[type[torch.optim.Optimizer], dict[str, str]]] = {
    optim.SGD: (torch.optim.SGD, {}),
    optim.Momentum: (torch.optim.SGD, {"momentum": "momentum", "nesterov": "nesterov"}),
    optim.Adagrad: (
        torch.optim.Adagrad,
        {"initial_accumulator_value": "initial_accumulator", "eps": "eps"},
    ),
    optim.RMSprop: (
        torch.optim.RMSprop,
        {"alpha": "alpha", "eps": "eps", "momentum": "momentum", "centered": "centered"},
    ),
    optim.Adadelta: (torch.optim.Adadelta, {"rho": "rho", "eps": "eps"}),
    optim.Adam: (torch.optim.Adam, {"betas": "betas", "eps": "eps"}),
    optim.AdamW: (torch.optim.AdamW, {"betas": "betas", "eps": "eps"}),
    optim.Adamax: (torch.optim.Adamax, {"betas": "betas", "eps": "eps"}),
}


def torch_optimizer(
    description: optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return a torch optimizer that updates `parameters` as a table with that description would.

    >>> layer = nn.Linear(2, 1)
    >>> type(torch_optimizer(optim.Adam(lr=0.01), list(layer.parameters()))).__name__
    'Adam'
    """
    kind = type(description)
    if kind in _OWN:
        made = _OWN[kind](parameters, description)
    elif kind in _TORCH:
        make, fields = _TORCH[kind]
        settings = {name: getattr(description, field) for name, field in fields.items()}
        made = make(parameters, lr=description.lr, weight_decay=description.l2, **settings)  # type: ignore[call-arg]
    else:
        known = ", ".join(sorted(one.__name__ for one in (*_OWN, *_TORCH)))
        raise ConfigError(
            f"dense parameters do not support {kind.__name__}; use {known} from sparsefleet.optim"
        )
    if description.l1 > 0 and not isinstance(description, optim.Ftrl):
        made.register_step_pre_hook(_adding_signs(description.l1))
    return made


class _OneByOne(torch.optim.Optimizer):
    """Updates parameters individually."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for w in (p for p in group["params"] if p.grad is not None):
                self._update(w, self.state[w], group["lr"])
        return loss

    @abstractmethod
    def _update(self, w: torch.Tensor, state: dict[str, torch.Tensor], lr: float) -> None:
        """Update the parameter `w` and its state, which is empty before the first step."""


class Ftrl(_OneByOne):
    """Follow the regularized leader (McMahan et al. 2013), like `sparsefleet.optim.Ftrl`.

    State: `squares` (n) and `linear` (z), each with the shape of the parameter.
    """

    def __init__(self, params: Any, description: optim.Ftrl) -> None:
        self._description = description
        super().__init__(params, description.lr)

    def _update(self, w: torch.Tensor, state: dict[str, torch.Tensor], lr: float) -> None:
        assert w.grad is not None
        rule = self._description
        power = -rule.lr_power
        if not state:
            state["squares"] = torch.full_like(w, rule.initial_accumulator)
            state["linear"] = torch.zeros_like(w)
        n, z = state["squares"], state["linear"]
        before = n.pow(power)
        n.addcmul_(w.grad, w.grad)
        after = n.pow(power)
        z.add_(w.grad).addcmul_((after - before) / lr, w, value=-1)
        moved = (z.sign() * rule.l1 - z) / (after / lr + 2 * rule.l2)
        w.copy_(torch.where(z.abs() <= rule.l1, torch.zeros_like(w), moved))


class DecayedAdagrad(_OneByOne):
    """Adagrad with a decaying sum, like `sparsefleet.optim.DecayedAdagrad`.

    State: `moment`, with the shape of the parameter.
    """

    def __init__(self, params: Any, description: optim.DecayedAdagrad) -> None:
        self._description = description
        super().__init__(params, description.lr)

    def _update(self, w: torch.Tensor, state: dict[str, torch.Tensor], lr: float) -> None:
        assert w.grad is not None
        rule = self._description
        if not state:
            state["moment"] = torch.zeros_like(w)
        g = w.grad.add(w, alpha=rule.l2) if rule.l2 else w.grad
        s = state["moment"].mul_(rule.decay).addcmul_(g, g, value=1 - rule.decay)
        w.addcdiv_(g, s.sqrt().add_(rule.eps), value=-lr)


def _adding_signs(l1: float) -> Callable[..., None]:
    """Return a hook that adds l1 * sign(w) to gradients, which torch's optimizers cannot do."""

    def add(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        del args, kwargs
        with torch.no_grad():
            for group in optimizer.param_groups:
                for w in group["params"]:
                    if w.grad is not None:
                        w.grad.add_(w.sign(), alpha=l1)

    return add


_OWN: dict[type[optim.Optimizer], Callable[[Any, Any], torch.optim.Optimizer]] = {
    optim.DecayedAdagrad: DecayedAdagrad,
    optim.Ftrl: Ftrl,
}


class TorchStepping:
    """Steps the user's torch optimizer with the mode's gradients, and blocks other calls to it.

    A loop that calls ``optimizer.step()`` out of habit would apply its gradients twice. Optimizers
    that are not torch optimizers are left alone.
    """

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        """The torch optimizer; None if it is not a torch optimizer."""
        self._hook: Any = None
        self._stepping = False

    def guard(self) -> None:
        """Make ``optimizer.step()`` raise from now on."""
        if self.optimizer is not None and self._hook is None:
            self._hook = self.optimizer.register_step_pre_hook(self._refuse)

    def release(self) -> None:
        """Hand control of the optimizer back to the user. Idempotent."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def step(
        self,
        parameters: Mapping[str, Sequence[nn.Parameter]],
        gradients: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Take one step with the flat gradients of each dense table; one thread at a time."""
        for table, flat in gradients.items():
            begin = 0
            for parameter in parameters[table]:
                part = flat[begin : begin + parameter.numel()]
                parameter.grad = torch.from_numpy(part).view(parameter.shape)
                begin += parameter.numel()
        self.step_in_place()
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)

    def step_in_place(self) -> None:
        """Take one step with the gradients that the parameters hold."""
        assert self.optimizer is not None
        self._stepping = True
        try:
            self.optimizer.step()
        finally:
            self._stepping = False

    def _refuse(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        del args, kwargs
        if not self._stepping:
            raise ConfigError(
                f"{type(optimizer).__name__}.step() was called while fleet controls the "
                "optimizer: gradients are applied when the step ends, so remove the call"
            )
