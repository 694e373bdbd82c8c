"""Groups of dense parameters with one update rule each, derived from the user's optimizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.torch_optimizers import TorchStepping
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import LocalConfig, ModeConfig
from sparsefleet.modes.mode_choice import mode_config
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.store import DenseSpec

__all__ = [
    "DenseGroup",
    "OptimizerLike",
    "dense_groups",
    "describe_optimizer",
    "require_local",
    "require_something_to_train",
    "require_table_optimizers",
    "warn_of_unused_state",
]

_log = logging.getLogger("sparsefleet.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseGroup:
    """Parameters that are updated by one rule and form one dense table."""

    table: str
    index: int
    """Index of the optimizer's parameter group."""
    parameters: list[nn.Parameter]
    optimizer: optim.Optimizer | None
    """The update rule; None if only torch implements it."""
    reason: str = ""
    """Why only torch implements the rule."""
    min_block_size: int = 8192
    """Smallest number of elements worth placing on an additional server."""

    def spec(self) -> DenseSpec:
        """Return the spec of the group's table. REQUIRES: `optimizer` is not None."""
        assert self.optimizer is not None
        size = sum(parameter.numel() for parameter in self.parameters)
        on_one_server = self.optimizer.needs_norms
        return DenseSpec(
            name=self.table,
            size=size,
            optimizer=self.optimizer,
            min_block_size=max(self.min_block_size, size if on_one_server else 1),
        )


OptimizerLike = torch.optim.Optimizer | optim.Optimizer | list[DenseGroup]
"""A torch optimizer, a description for all trainable parameters, or ready-made groups."""


def dense_groups(model: nn.Module, optimizer: OptimizerLike) -> list[DenseGroup]:
    """Return the optimizer's groups; a `sparsefleet.optim` description puts all parameters in one
    group, or each in its own group if it needs their norms.

    Frozen parameters (requires_grad=False) are left out.
    """
    if isinstance(optimizer, list):
        return optimizer
    if isinstance(optimizer, optim.Optimizer):
        if isinstance(optimizer, optim.RowwiseAdagrad):
            raise ConfigError(
                "RowwiseAdagrad supports only sparse tables, since dense parameters have no rows; "
                "use Adagrad"
            )
        trainable = [p for p in model.parameters() if p.requires_grad]
        together = [[one] for one in trainable] if optimizer.needs_norms else [trainable]
        return [
            DenseGroup(table=_table_name(at), index=0, parameters=members, optimizer=optimizer)
            for at, members in enumerate(together)
            if members
        ]
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            "optimizer must be a torch.optim.Optimizer or a sparsefleet.optim description, got "
            f"{_found(optimizer)}"
        )
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        why = "computes the loss several times per step"
        if isinstance(optimizer, torch.optim.SparseAdam):
            why = "updates only sparse gradients, and dense parameters have none"
        raise ConfigError(
            f"{type(optimizer).__name__} is not supported, because it {why}: use a different "
            "optimizer, such as torch.optim.Adam"
        )
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        trainable = [p for p in group["params"] if p.requires_grad]
        if not trainable:
            continue
        description: optim.Optimizer | None = None
        reason = ""
        try:
            description = describe_optimizer(optimizer, group)
        except ConfigError as error:
            reason = str(error)
        groups.append(
            DenseGroup(
                table=_table_name(index),
                index=index,
                parameters=trainable,
                optimizer=description,
                reason=reason,
            )
        )
    return groups


def _found(optimizer: object) -> str:
    """Describe what was passed as an optimizer, and how to create one from a class."""
    if not isinstance(optimizer, type):
        return type(optimizer).__name__
    given = "lr=..."
    if issubclass(optimizer, torch.optim.Optimizer):
        given = "model.parameters(), lr=..."
    name = optimizer.__name__
    return f"the class {name}: pass {name}({given})"


def warn_of_unused_state(model: nn.Module, optimizer: OptimizerLike) -> None:
    """Warn if the optimizer has already taken steps and the store will replace it."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    if not any(map(_has_stepped, optimizer.state.values())):
        return
    if any(group.optimizer is not None for group in dense_groups(model, optimizer)):
        _log.warning(
            "this %s has already taken steps: its state (moments, sums of squares) is ignored, and "
            "training starts with new state",
            type(optimizer).__name__,
        )


def _has_stepped(state: Mapping[str, Any]) -> bool:
    """Return whether a parameter's state is that of a step; Adagrad creates it before the first."""
    steps = state.get("step")
    return bool(state) if steps is None else float(steps) > 0


def _table_name(number: int) -> str:
    return "dense" if number == 0 else f"dense.{number}"


def describe_optimizer(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any]
) -> optim.Optimizer:
    """Return the optimizer description whose updates match the torch optimizer's.

    Raises ConfigError if there is none.

    >>> layer = nn.Linear(2, 1)
    >>> adam = torch.optim.Adam(layer.parameters(), lr=0.002)
    >>> describe_optimizer(adam, adam.param_groups[0]).lr
    0.002
    """
    kind = type(optimizer)
    describe = _DESCRIBE.get(kind)
    if describe is None:
        known = ", ".join(sorted(known.__name__ for known in _DESCRIBE))
        raise ConfigError(
            f"tables do not support {kind.__name__}; use {known} from torch.optim, or an optimizer "
            "from sparsefleet.optim"
        )
    if group.get("maximize"):
        raise ConfigError(
            f"tables do not support {kind.__name__} with maximize=True; negate the loss instead"
        )
    if _has_hooks(optimizer):
        raise ConfigError(
            f"tables do not support {kind.__name__} with step hooks, which would never run: remove "
            "them, and use TrainerConfig(clip_grad_norm=...) or callbacks instead"
        )
    return describe(group)


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a user has registered hooks around ``optimizer.step()``."""
    before: Mapping[int, Any] = getattr(optimizer, "_optimizer_step_pre_hooks", {})
    after: Mapping[int, Any] = getattr(optimizer, "_optimizer_step_post_hooks", {})
    hooks = [*before.values(), *after.values()]
    return any(not isinstance(getattr(hook, "__self__", None), TorchStepping) for hook in hooks)


def require_something_to_train(
    model: nn.Module, groups: Sequence[DenseGroup], modules: Sequence[SparseModule]
) -> None:
    """Raise ConfigError if a model has nothing to train, or clashing table names."""
    if not groups and not modules:
        raise ConfigError(
            f"{type(model).__name__} has no SparseEmbedding and none of the optimizer's "
            "parameters, so there is nothing to train: create the optimizer from "
            "model.parameters()"
        )
    own = {group.table for group in groups}
    for module in modules:
        if module.name in own:
            raise ConfigError(
                f"a {type(module).__name__} has the table name '{module.name}', which is reserved "
                "for dense parameters: choose a different name"
            )


def require_table_optimizers(
    modules: Sequence[SparseModule], groups: Sequence[DenseGroup], default: optim.Optimizer | None
) -> None:
    """Raise ConfigError for tables that would use an optimizer that only torch implements.

    default: the optimizer for tables without their own; None if there is none.
    """
    without = [module.name for module in modules if module.own_optimizer is None]
    if default is None and without and groups:
        raise ConfigError(
            f"table '{without[0]}' has no optimizer and cannot use the model's: "
            f"{groups[0].reason}. Change the model's optimizer, or give the table its own: "
            "SparseEmbedding(..., optimizer=sparsefleet.optim.Adam(lr=...))"
        )


def require_local(groups: Sequence[DenseGroup], role: RoleInfo, mode: str | ModeConfig) -> None:
    """Raise ConfigError if servers would have to apply rules that only torch implements."""
    if groups and (role.server_endpoints or not isinstance(mode_config(mode), LocalConfig)):
        where = "with servers" if role.server_endpoints else f"in mode {mode!r}"
        raise ConfigError(
            f"{groups[0].reason}; {where}, only these can be used; mode 'collective' supports any "
            "optimizer"
        )


def _refuse(group: Mapping[str, Any], kind: str, **wanted: object) -> None:
    for field, value in wanted.items():
        if group.get(field, value) != value:
            raise ConfigError(
                f"tables support {kind} only with {field}={value!r}, got {group[field]!r}"
            )


def _sgd(group: Mapping[str, Any]) -> optim.Optimizer:
    _refuse(group, "SGD", dampening=0)
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    if group["momentum"] == 0:
        return optim.SGD(lr=lr, l2=decay)
    return optim.Momentum(
        lr=lr, l2=decay, momentum=float(group["momentum"]), nesterov=bool(group["nesterov"])
    )


def _adagrad(group: Mapping[str, Any]) -> optim.Optimizer:
    _refuse(group, "Adagrad", lr_decay=0)
    return optim.Adagrad(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        eps=float(group["eps"]),
        initial_accumulator=float(group["initial_accumulator_value"]),
    )


def _adam(group: Mapping[str, Any]) -> optim.Optimizer:
    kind = optim.AdamW if group.get("decoupled_weight_decay") else optim.Adam
    _refuse(group, kind.__name__, amsgrad=False)
    return kind(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        betas=(float(group["betas"][0]), float(group["betas"][1])),
        eps=float(group["eps"]),
    )


def _adamw(group: Mapping[str, Any]) -> optim.Optimizer:
    return _adam({**group, "decoupled_weight_decay": True})


def _adamax(group: Mapping[str, Any]) -> optim.Optimizer:
    return optim.Adamax(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        betas=(float(group["betas"][0]), float(group["betas"][1])),
        eps=float(group["eps"]),
    )


def _rmsprop(group: Mapping[str, Any]) -> optim.Optimizer:
    return optim.RMSprop(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        alpha=float(group["alpha"]),
        eps=float(group["eps"]),
        momentum=float(group["momentum"]),
        centered=bool(group["centered"]),
    )


def _adadelta(group: Mapping[str, Any]) -> optim.Optimizer:
    return optim.Adadelta(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        rho=float(group["rho"]),
        eps=float(group["eps"]),
    )


_DESCRIBE: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], optim.Optimizer]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adadelta: _adadelta,
}
