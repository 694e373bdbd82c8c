"""The dense tensors of a worker that steps its parameters itself, as checkpoints hold them.

State of an optimizer is saved under the names, and in the shapes, that tables have for it: so a
checkpoint of a collective training can be taken up on servers, and the other way about. State
that differs between workers is saved for each, as `<parameter>/<state>@<worker>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import nn

from sparsefleet import optim
from sparsefleet.collective import World
from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.fleet.model_tensors import ModelTensors

__all__ = ["RankTensors"]

Arrays = dict[str, NDArray[Any]]

# Kind of optimizer -> what torch calls its state -> what tables call it.
_TABLE_NAMES: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"momentum_buffer": "buffer"},
    "adagrad": {"sum": "sum"},
    "decayed_adagrad": {"moment": "moment"},
    "adam": {"exp_avg": "m", "exp_avg_sq": "v", "step": "step"},
    "adamax": {"exp_avg": "m", "exp_inf": "norm", "step": "step"},
    "ftrl": {"squares": "squares", "linear": "linear"},
    "rmsprop": {"square_avg": "square", "grad_avg": "mean", "momentum_buffer": "buffer"},
}
_COUNTED = {"adagrad", "adam", "adamax", "rmsprop"}
"""Kinds of which torch counts the steps, in a scalar `step`."""


class RankTensors(ModelTensors):
    """All parameters and buffers, with the state of torch's optimizer.

    described: parameter -> what of `sparsefleet.optim` its optimizer is; None if only torch knows.
    """

    def __init__(
        self,
        model: nn.Module,
        stepped_by: torch.optim.Optimizer | None,
        described: Mapping[str, optim.Optimizer | None],
    ) -> None:
        super().__init__(model, {}, stepped_by)
        self._described = described
        self._rank = 0
        self._others: Arrays = {}

    def gather(self, world: World) -> None:
        """Brings the state of all workers to the first, where it differs. All workers call it."""
        self._rank = world.rank
        state = {name: array for name, array in self._named(_everything).items() if "/" in name}
        gathered = world.all_gather_bytes(save(state) if state and world.rank else b"")
        self._others = {
            f"{name}@{rank}": array
            for rank, data in enumerate(gathered)
            if data
            for name, array in load(data).items()
        }

    def copy_own(self, only: Callable[[str], bool]) -> Arrays:
        others = {n: a for n, a in self._others.items() if only(n.rpartition("/")[0])}
        return self._named(only) | others

    def fitted(self, arrays: Mapping[str, NDArray[Any]], rank: int) -> Arrays:
        """What a checkpoint holds, as torch names it, and of worker `rank` where it is by worker.

        CheckpointMismatchError if it is the state of another optimizer.
        """
        own = {name: array for name, array in arrays.items() if "@" not in name}
        mark = f"@{rank}"
        own |= {n.removesuffix(mark): a for n, a in arrays.items() if n.endswith(mark)}
        found = {name: array for name, array in own.items() if "/" not in name}
        for name, described in self._described.items():
            state = {
                key.rpartition("/")[2]: array
                for key, array in own.items()
                if key.rpartition("/")[0] == name
            }
            for part, array in _for_torch(name, described, state).items():
                found[f"{name}/{part}"] = array
        return found

    def _named(self, only: Callable[[str], bool]) -> Arrays:
        copies = super().copy_own(only)
        for name, described in self._described.items():
            if name not in copies or described is None:
                continue
            shape = copies[name].shape
            for part, table_name in _names_of(described).items():
                state = copies.pop(f"{name}/{part}", np.zeros((), np.float32))
                whole = np.broadcast_to(state.astype(np.float32), shape)
                copies[f"{name}/{table_name}"] = np.ascontiguousarray(whole)
        return copies


def _names_of(described: optim.Optimizer) -> dict[str, str]:
    names = _TABLE_NAMES[described.kind]
    if isinstance(described, optim.RMSprop):
        wanted = {"square_avg", *(["grad_avg"] if described.centered else [])}
        wanted |= {"momentum_buffer"} if described.momentum > 0 else set()
        return {part: name for part, name in names.items() if part in wanted}
    return names


def _for_torch(
    name: str, described: optim.Optimizer | None, state: Mapping[str, NDArray[Any]]
) -> Mapping[str, NDArray[Any]]:
    """Empty where there is none: the optimizer then begins anew."""
    if described is None or not state:
        return state
    names = _names_of(described)
    missing = sorted(set(names.values()) - state.keys())
    if missing:
        raise CheckpointMismatchError(
            f"'{name}': expected the state '{missing[0]}' of {type(described).__name__}, found "
            f"{', '.join(sorted(state))}: the checkpoint is of another optimizer"
        )
    found = {part: state[table_name] for part, table_name in names.items()}
    if described.kind in _COUNTED:
        counted = np.ravel(state.get("step", np.zeros(1, np.float32)))
        found["step"] = counted[:1].reshape(()).astype(np.float32)
    return found


def _everything(_: str) -> bool:
    return True
