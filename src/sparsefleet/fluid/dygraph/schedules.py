"""Learning-rate schedules for optimizers in imperative mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from sparsefleet.fluid.operators import schedules

__all__ = [
    "CosineDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LambdaDecay",
    "LearningRateDecay",
    "LinearLrWarmup",
    "MultiStepDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ReduceLROnPlateau",
    "StepDecay",
]


class LearningRateDecay:
    """Base class.

    `step()` returns the rate at `step_num`; calling the object also advances `step_num`.
    """

    def __init__(self, begin: float = 0, step: float = 1, dtype: Any = "float32") -> None:
        self.step_num, self.step_size, self.dtype = begin, step, dtype

    def __call__(self) -> float:
        rate = float(self.step())
        self.step_num += self.step_size
        return rate

    def step(self) -> float:
        """Return the current rate."""
        raise NotImplementedError(f"{type(self).__name__} has no step(); define it")

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume."""
        return {"step_num": self.step_num}

    def set_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state returned by `state_dict`."""
        self.step_num = state_dict["step_num"]

    set_state_dict = set_dict


class PiecewiseDecay(LearningRateDecay):
    """Uses values[i] before step boundaries[i], and the last value after the last boundary.

    >>> rate = PiecewiseDecay([2], [0.1, 0.01], begin=0)
    >>> [rate() for _ in range(3)]
    [0.1, 0.1, 0.01]
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        begin: float,
        step: float = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self._boundaries, self._values = boundaries, values

    def step(self) -> float:
        passed = sum(self.step_num >= boundary for boundary in self._boundaries)
        return self._values[passed]


class _FormulaDecay(LearningRateDecay):
    """Base class for schedules with the formula of the operator that static programs use."""

    formula: ClassVar[Callable[..., torch.Tensor]]

    def __init__(self, begin: float, step: float, dtype: Any, **settings: Any) -> None:
        super().__init__(begin, step, dtype)
        self._settings = settings

    def step(self) -> float:
        return float(type(self).formula(torch.tensor(self.step_num), **self._settings))


class _StepsDecay(_FormulaDecay):
    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        begin: float = 0,
        *,
        step: float = 1,
        dtype: Any = "float32",
    ) -> None:
        settings = {"learning_rate": learning_rate, "decay_steps": decay_steps}
        super().__init__(begin, step, dtype, decay_rate=decay_rate, staircase=staircase, **settings)


class NaturalExpDecay(_StepsDecay):
    """Returns rate * exp(-decay_rate * steps)."""

    formula = schedules.natural_exp_decay_op


class ExponentialDecay(_StepsDecay):
    """Returns rate * decay_rate ** steps."""

    formula = schedules.exponential_decay_op


class InverseTimeDecay(_StepsDecay):
    """Returns rate / (1 + decay_rate * steps)."""

    formula = schedules.inverse_time_decay_op


class PolynomialDecay(_FormulaDecay):
    """Decays the rate to end_learning_rate, as a power of the fraction of steps remaining."""

    formula = schedules.polynomial_decay_op

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        *,
        begin: float = 0,
        step: float = 1,
        dtype: Any = "float32",
    ) -> None:
        settings = {"learning_rate": learning_rate, "end_learning_rate": end_learning_rate}
        super().__init__(
            begin, step, dtype, decay_steps=decay_steps, power=power, cycle=cycle, **settings
        )


class CosineDecay(_FormulaDecay):
    """Decays the rate over the epochs along half a cosine wave."""

    formula = schedules.cosine_decay_op

    def __init__(
        self,
        learning_rate: float,
        step_each_epoch: int,
        epochs: int,
        begin: float = 0,
        step: float = 1,
        dtype: Any = "float32",
    ) -> None:
        settings = {"learning_rate": learning_rate, "step_each_epoch": step_each_epoch}
        super().__init__(begin, step, dtype, epochs=epochs, **settings)


class NoamDecay(_FormulaDecay):
    """Increases the rate for warmup_steps, then decays it with the inverse square root of the
    step.
    """

    formula = schedules.noam_decay_op

    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        begin: float = 1,
        step: float = 1,
        dtype: Any = "float32",
        learning_rate: float = 1.0,
    ) -> None:
        settings = {"d_model": d_model, "warmup_steps": warmup_steps}
        super().__init__(begin, step, dtype, learning_rate=learning_rate, **settings)


class LinearLrWarmup(LearningRateDecay):
    """Increases the rate from start_lr to end_lr over warmup_steps, then uses `learning_rate`."""

    def __init__(
        self,
        learning_rate: float | LearningRateDecay,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        begin: float = 1,
        *,
        step: float = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        if start_lr > end_lr:
            raise AssertionError(f"start_lr {start_lr} must not be greater than end_lr {end_lr}")
        self._after, self._warmup = learning_rate, warmup_steps
        self._start, self._ratio = start_lr, (end_lr - start_lr) / warmup_steps

    def step(self) -> float:
        after = self._after() if isinstance(self._after, LearningRateDecay) else self._after
        if self.step_num < self._warmup:
            return self._start + self._ratio * self.step_num
        return float(after)


class _EpochDecay(LearningRateDecay):
    """Base class for schedules that advance when the user calls `epoch()`."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        if not isinstance(learning_rate, (int, float)):
            raise TypeError(f"learning_rate must be a number, got {learning_rate!r}")
        self.base_lr = float(learning_rate)
        self.epoch_num = 0

    def epoch(self, epoch: int | None = None) -> None:
        """Advance to the next epoch, or to the given epoch."""
        self.epoch_num = self.epoch_num + 1 if epoch is None else epoch

    def __call__(self) -> float:
        return float(self.get_lr())

    step = __call__

    def get_lr(self) -> float:
        """Return the rate in this epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr(); define it")

    def state_dict(self) -> dict[str, Any]:
        return {"epoch_num": self.epoch_num}

    def set_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch_num = state_dict["epoch_num"]

    set_state_dict = set_dict


class StepDecay(_EpochDecay):
    """Multiplies the rate by decay_rate after every step_size epochs."""

    def __init__(self, learning_rate: float, step_size: int, decay_rate: float = 0.1) -> None:
        if not isinstance(step_size, int):
            raise TypeError(f"step_size must be an int, got {step_size!r}")
        if decay_rate >= 1.0:
            raise ValueError(f"decay_rate must be less than 1, got {decay_rate}")
        super().__init__(learning_rate)
        self._size, self._decay = step_size, decay_rate

    def get_lr(self) -> float:
        return float(self.base_lr * self._decay ** (self.epoch_num // self._size))


class MultiStepDecay(_EpochDecay):
    """Multiplies the rate by decay_rate at each epoch in `milestones`."""

    def __init__(
        self, learning_rate: float, milestones: Sequence[int], decay_rate: float = 0.1
    ) -> None:
        if not isinstance(milestones, (tuple, list)):
            raise TypeError(f"milestones must be a list or tuple, got {milestones!r}")
        if list(milestones) != sorted(set(milestones)):
            raise ValueError(f"milestones must be increasing, got {list(milestones)}")
        if decay_rate >= 1.0:
            raise ValueError(f"decay_rate must be less than 1, got {decay_rate}")
        super().__init__(learning_rate)
        self._milestones, self._decay = milestones, decay_rate

    def get_lr(self) -> float:
        passed = sum(self.epoch_num >= one for one in self._milestones)
        return float(self.base_lr * self._decay**passed)


class LambdaDecay(_EpochDecay):
    """Multiplies the rate by a function of the epoch."""

    def __init__(self, learning_rate: float, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise TypeError(f"lr_lambda must be a function, got {lr_lambda!r}")
        super().__init__(learning_rate)
        self._factor = lr_lambda

    def get_lr(self) -> float:
        return self.base_lr * self._factor(self.epoch_num)


class ReduceLROnPlateau(LearningRateDecay):
    """Multiplies the rate by decay_rate when a loss has not improved for `patience` steps."""

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        decay_rate: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        *,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        eps: float = 1e-8,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        if mode.lower() not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if decay_rate >= 1.0:
            raise ValueError(f"decay_rate must be less than 1, got {decay_rate}")
        if threshold_mode.lower() not in ("rel", "abs"):
            raise ValueError(f"threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}")
        if not isinstance(learning_rate, (float, int)):
            raise TypeError(f"learning_rate must be a number, got {learning_rate!r}")
        self.learning_rate = float(learning_rate)
        self.mode, self.decay_rate, self.patience = mode.lower(), decay_rate, patience
        self.verbose, self.threshold, self.threshold_mode = verbose, threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best_loss: float | None = None
        self.cooldown_counter = self.num_bad_epochs = self.epoch_num = 0

    def __call__(self) -> float:
        return self.learning_rate

    def step(self, loss: Any = None) -> Any:
        """Record the loss of an epoch; without a loss, return the current rate."""
        if loss is None:
            return self.learning_rate
        value = float(loss.numpy().reshape(-1)[0]) if hasattr(loss, "numpy") else float(loss)
        self.epoch_num += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return None
        if self.best_loss is None or self._is_better(value, self.best_loss):
            self.best_loss, self.num_bad_epochs = value, 0
            return None
        self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            new = max(self.learning_rate * self.decay_rate, self.min_lr)
            if self.learning_rate - new > self.eps:
                if self.verbose:
                    print(f"Epoch {self.epoch_num}: reducing learning rate to {new}.")
                self.learning_rate = new
        return None

    def _is_better(self, value: float, best: float) -> bool:
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return value < best - margin if self.mode == "min" else value > best + margin

    def state_dict(self) -> dict[str, Any]:
        names = ("cooldown_counter", "best_loss", "num_bad_epochs", "epoch_num", "learning_rate")
        return {name: getattr(self, name) for name in names}

    def set_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)

    set_state_dict = set_dict
