"""The factor that keeps 16-bit gradients from vanishing, and how it follows overflows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.errors import ConfigError

__all__ = ["LossScaler"]


class LossScaler:
    """Loss scale and the counters that move it, as Fluid's ``decorate`` has them.

    A step without overflow counts as good, one with it as bad; either ends the run of the other.
    The scale grows in the step that makes good steps *more* than ``incr_every_n_steps``, and
    shrinks in the one that makes bad steps more than ``decr_every_n_nan_or_inf``. Not thread-safe.

    >>> scaler = LossScaler(AmpConfig(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1,
    ...                               decr_ratio=0.5))
    >>> [scaler.update(is_finite=finite) for finite in (False, False)]
    [8.0, 4.0]
    """

    def __init__(self, config: AmpConfig) -> None:
        self._config = config
        self._scale = np.float32(config.init_loss_scaling)
        self._good_steps = 0
        self._bad_steps = 0

    @property
    def scale(self) -> float:
        """What the loss is multiplied by now; a float32 number, as in Fluid."""
        return float(self._scale)

    @property
    def is_dynamic(self) -> bool:
        """Whether overflows are looked for at all."""
        return self._config.dynamic

    @property
    def good_steps(self) -> int:
        """Steps without overflow since the scale or the run changed."""
        return self._good_steps

    @property
    def bad_steps(self) -> int:
        """Overflows in a row."""
        return self._bad_steps

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call ``backward`` on: in float32, so that the product does not overflow."""
        return loss.float() * self.scale

    def update(self, *, is_finite: bool) -> float:
        """Counts a step with or without overflow; returns the scale of the next one.

        A static scale stays as it is.
        """
        if not self._config.dynamic:
            return self.scale
        if is_finite:
            self._count_good()
        else:
            self._count_bad()
        return self.scale

    def _count_good(self) -> None:
        self._bad_steps = 0
        self._good_steps += 1
        if self._good_steps > self._config.incr_every_n_steps:
            with np.errstate(over="ignore"):
                larger = self._scale * np.float32(self._config.incr_ratio)
            if np.isfinite(larger):
                self._scale = larger
            self._good_steps = 0

    def _count_bad(self) -> None:
        self._good_steps = 0
        self._bad_steps += 1
        if self._bad_steps > self._config.decr_every_n_nan_or_inf:
            smaller = self._scale * np.float32(self._config.decr_ratio)
            self._scale = max(np.float32(1.0), smaller)
            self._bad_steps = 0

    def state_dict(self) -> dict[str, float | int]:
        """Scale and counters, by Fluid's names."""
        return {
            "loss_scaling": self.scale,
            "num_good_steps": self._good_steps,
            "num_bad_steps": self._bad_steps,
        }

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Goes on where ``state_dict`` was taken."""
        scale = float(state["loss_scaling"])
        if not (math.isfinite(scale) and scale > 0):
            raise ConfigError(f"LossScaler: loss_scaling must be a number > 0, got {scale}")
        self._scale = np.float32(scale)
        self._good_steps = int(state["num_good_steps"])
        self._bad_steps = int(state["num_bad_steps"])
