"""Applies torch's learning-rate schedules; the mode counts the steps."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from sparsefleet import optim
from sparsefleet.engine.dense_groups import DenseGroup, OptimizerLike
from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode_setting import Schedule

__all__ = ["RateSchedule", "ScheduleLike", "schedule_with_rates"]

ScheduleLike = LRScheduler | Callable[[int], float]


class RateSchedule:
    """The learning rate of every table at a given step.

    schedule: a torch scheduler, created for the dense optimizer and stepped once per training step,
        or a function from the number of steps to a factor for the initial rate.
    following: the sparse tables that use the model's optimizer; they have the rate of its first
        parameter group. Tables with their own optimizer keep their rate.
    torch_steps: whether to set the rates of the torch optimizer's groups too.
    """

    def __init__(
        self,
        schedule: ScheduleLike,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        groups: Sequence[DenseGroup],
        following: Sequence[str],
        *,
        torch_steps: bool = False,
    ) -> None:
        if isinstance(schedule, ReduceLROnPlateau):
            raise ConfigError(
                "ReduceLROnPlateau follows a metric, not the number of steps: pass a different "
                "scheduler, or a function from step to factor"
            )
        if isinstance(schedule, LRScheduler):
            if schedule.optimizer is not optimizer:
                raise ConfigError(
                    "the schedule was created for a different optimizer: create it for the "
                    "model's optimizer"
                )
            if (following or not torch_steps) and _cycles_momentum(schedule):
                raise ConfigError(
                    f"{type(schedule).__name__} changes the momentum too, but tables keep theirs: "
                    "pass cycle_momentum=False to it"
                )
        elif isinstance(schedule, type):
            raise ConfigError(
                f"schedule must be an instance, got the class {schedule.__name__}: pass "
                f"{schedule.__name__}(optimizer, ...)"
            )
        elif not callable(schedule):
            raise ConfigError(
                "schedule must be a torch LRScheduler or a function from step to factor, got "
                f"{type(schedule).__name__}"
            )
        self._schedule = schedule
        self._optimizer = optimizer
        self._group_of = {group.table: group.index for group in groups}
        self._group_of.update(dict.fromkeys(following, groups[0].index if groups else 0))
        self._first = self._rates_now()
        self._torch_steps = torch_steps
        self._lock = threading.Lock()
        self._position = _position(schedule) if isinstance(schedule, LRScheduler) else 0

    @property
    def sets_groups(self) -> bool:
        """Return whether the rates of the torch optimizer's groups change with the steps."""
        return self._torch_steps or isinstance(self._schedule, LRScheduler)

    def require_own_steps(self) -> None:
        """Raise ConfigError if someone else has stepped the torch scheduler."""
        if not isinstance(self._schedule, LRScheduler):
            return
        with self._lock:
            found = _position(self._schedule)
            if found != self._position:
                raise ConfigError(
                    f"{type(self._schedule).__name__} was stepped from {self._position} to {found} "
                    "outside of training, which steps it once per training step: remove the call "
                    "to scheduler.step()"
                )

    def rates_at(self, step: int) -> dict[str, float]:
        """Return each table's rate after `step` steps. A torch scheduler can only move forward."""
        schedule = self._schedule
        if not isinstance(schedule, LRScheduler):
            factor = _checked_factor(schedule(step), step)
            rates = {table: first * factor for table, first in self._first.items()}
            if self._torch_steps:
                self._set_groups(rates)
            return rates
        with self._lock, warnings.catch_warnings():
            # Torch expects optimizer.step() between two calls, but here servers take the steps.
            warnings.simplefilter("ignore", UserWarning)
            if _position(schedule) == self._position:  # or the next training step raises
                while _position(schedule) < step:
                    schedule.step()
                self._position = _position(schedule)
            return self._rates_now()

    def _set_groups(self, rates: Mapping[str, float]) -> None:
        assert isinstance(self._optimizer, torch.optim.Optimizer)
        for table, index in self._group_of.items():
            self._optimizer.param_groups[index]["lr"] = rates[table]

    def _rates_now(self) -> dict[str, float]:
        if isinstance(self._optimizer, optim.Optimizer):
            return dict.fromkeys(self._group_of, self._optimizer.lr)
        groups = self._optimizer.param_groups
        return {table: float(groups[index]["lr"]) for table, index in self._group_of.items()}


def _checked_factor(factor: Any, step: int) -> float:
    """Return what a schedule function returned. Raises ConfigError unless it can scale a rate."""
    try:
        number = float(factor)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(
            f"the schedule must return a number >= 0, the factor of the learning rate, got "
            f"{factor!r} for step {step}"
        )
    return number


def _position(schedule: LRScheduler) -> int:
    """Return how often a scheduler was stepped; a ChainedScheduler does not count by itself."""
    if isinstance(schedule, ChainedScheduler):
        return _position(schedule._schedulers[0])
    return schedule.last_epoch


def _cycles_momentum(schedule: LRScheduler) -> bool:
    inner: Sequence[LRScheduler] = getattr(schedule, "_schedulers", ())
    return bool(getattr(schedule, "cycle_momentum", False)) or any(map(_cycles_momentum, inner))


def schedule_with_rates(
    schedule: ScheduleLike | Schedule | None,
    optimizer: OptimizerLike,
    groups: Sequence[DenseGroup],
    following: Sequence[str],
    *,
    torch_steps: bool,
) -> Schedule | None:
    """Return a `RateSchedule` for these arguments; None and `Schedule` objects are returned
    unchanged.
    """
    if schedule is None or isinstance(schedule, Schedule):
        return schedule
    if isinstance(optimizer, list):
        raise ConfigError("groups with their own optimizers need a schedule with rates_at()")
    return RateSchedule(schedule, optimizer, groups, following, torch_steps=torch_steps)
