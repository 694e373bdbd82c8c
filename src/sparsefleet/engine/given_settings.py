"""Detects changes to the user's torch optimizer and scheduler that training would not see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from sparsefleet.engine.dense_groups import DenseGroup, OptimizerLike
from sparsefleet.engine.rate_schedule import RateSchedule
from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode_setting import Schedule

__all__ = ["GivenSettings"]


class GivenSettings:
    """The settings of the user's torch optimizer when tables took them over.

    Tables keep their own copy, so a later ``optimizer.param_groups[0]["lr"] = ...`` or
    ``scheduler.step()`` would be ignored; `require_unchanged` raises instead. Optimizers that are
    not torch optimizers do not change.

    groups: the optimizer's groups.
    in_store: the groups that the store updates.
    following: the sparse tables that use the optimizer of the first group.
    """

    def __init__(
        self,
        optimizer: OptimizerLike,
        groups: Sequence[DenseGroup],
        in_store: Iterable[DenseGroup],
        following: Collection[str],
        schedule: Schedule | None,
    ) -> None:
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self._schedule = schedule if isinstance(schedule, RateSchedule) else None
        self._given: dict[int, dict[str, object]] = {}
        if self._optimizer is None:
            return
        used = {group.index for group in in_store}
        if following:
            used.add(groups[0].index if groups else 0)
        sets_rates = self._schedule is not None and self._schedule.sets_groups
        fields = sorted(self._optimizer.defaults.keys() - ({"lr"} if sets_rates else set()))
        for index in sorted(used):
            group = self._optimizer.param_groups[index]
            self._given[index] = {field: _plain(group[field]) for field in fields if field in group}

    def require_unchanged(self) -> None:
        """Raise ConfigError if a setting that tables use has changed since they took it over."""
        if self._schedule is not None:
            self._schedule.require_own_steps()
        if self._optimizer is None:
            return
        for index, given in self._given.items():
            group = self._optimizer.param_groups[index]
            for field, value in given.items():
                found = group[field]
                if found is not value and _plain(found) != value:
                    raise ConfigError(
                        f"{field} of {type(self._optimizer).__name__}, group {index}, was changed "
                        f"from {value!r} to {_plain(found)!r}, but tables keep the value they were "
                        "created with: pass a scheduler or a function from step to factor as "
                        "schedule=, and do not call scheduler.step(); it can change only lr"
                    )


def _plain(value: Any) -> object:
    """Return a setting without tensors, which may change in place."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return tuple(_plain(one) for one in value) if isinstance(value, (tuple, list)) else value
