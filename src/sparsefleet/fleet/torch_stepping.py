"""The user's torch optimizer while fleet has charge of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet.errors import ConfigError

__all__ = ["TorchStepping"]


class TorchStepping:
    """Steps a torch optimizer with the gradients of a mode, and lets nobody else do so meanwhile.

    A loop that calls ``optimizer.step()`` out of habit would apply its gradients twice. An
    optimizer that is not torch's is left alone.
    """

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        """Torch's optimizer; None if it is another's."""
        self._hook: Any = None
        self._stepping = False

    def guard(self) -> None:
        """From now on ``optimizer.step()`` raises."""
        if self.optimizer is not None and self._hook is None:
            self._hook = self.optimizer.register_step_pre_hook(self._refuse)

    def release(self) -> None:
        """The optimizer is the user's again. Idempotent."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def step(
        self,
        parameters: Mapping[str, Sequence[nn.Parameter]],
        gradients: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """One step with the flat gradients of each dense table; one thread at a time."""
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
        """One step with the gradients that the parameters have."""
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
                f"{type(optimizer).__name__}.step() was called while fleet has charge of the "
                "optimizer: gradients are applied as the step ends, leave the call out"
            )
