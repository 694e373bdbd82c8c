"""From an optimizer of torch to the descriptions that tables understand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.store import DenseSpec

__all__ = ["DenseGroup", "OptimizerLike", "dense_groups", "describe_optimizer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseGroup:
    """Parameters that are updated by one rule: one dense table."""

    table: str
    index: int
    """Of the optimizer's group."""
    parameters: list[nn.Parameter]
    optimizer: optim.Optimizer | None
    """None: only torch knows this rule."""
    reason: str = ""
    """Why only torch knows it."""
    min_block_size: int = 8192
    """Elements; fewer are not worth another server."""

    def spec(self) -> DenseSpec:
        """Its table. REQUIRES: not only torch knows the rule."""
        assert self.optimizer is not None
        return DenseSpec(
            name=self.table,
            size=sum(parameter.numel() for parameter in self.parameters),
            optimizer=self.optimizer,
            min_block_size=self.min_block_size,
        )


OptimizerLike = torch.optim.Optimizer | optim.Optimizer | list[DenseGroup]
"""Torch's, a description of ours for all trainable parameters, or groups with one each."""


def dense_groups(model: nn.Module, optimizer: OptimizerLike) -> list[DenseGroup]:
    """The groups of the optimizer; a description of ours takes all trainable parameters.

    Frozen parameters (requires_grad=False) are left out.
    """
    if isinstance(optimizer, list):
        return optimizer
    if isinstance(optimizer, optim.Optimizer):
        if isinstance(optimizer, optim.RowwiseAdagrad):
            raise ConfigError("RowwiseAdagrad is for tables with rows: dense parameters have none")
        trainable = [p for p in model.parameters() if p.requires_grad]
        groups = [DenseGroup(table="dense", index=0, parameters=trainable, optimizer=optimizer)]
        return groups if trainable else []
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            "optimizer must be a torch.optim.Optimizer or a sparsefleet.optim description, got "
            f"{type(optimizer).__name__}"
        )
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        trainable = [p for p in group["params"] if p.requires_grad]
        if not trainable:
            continue
        table = "dense" if index == 0 else f"dense.{index}"
        description: optim.Optimizer | None = None
        reason = ""
        try:
            description = describe_optimizer(optimizer, group)
        except ConfigError as error:
            reason = str(error)
        groups.append(
            DenseGroup(
                table=table,
                index=index,
                parameters=trainable,
                optimizer=description,
                reason=reason,
            )
        )
    return groups


def describe_optimizer(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any]
) -> optim.Optimizer:
    """The description that updates as torch does; ConfigError if there is none.

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
            f"servers have no {kind.__name__}; of torch.optim they have {known}, and more in "
            "sparsefleet.optim"
        )
    if group.get("maximize"):
        raise ConfigError(f"servers have no {kind.__name__} with maximize=True: negate the loss")
    return describe(group)


def _refuse(group: Mapping[str, Any], kind: str, **wanted: object) -> None:
    for field, value in wanted.items():
        if group.get(field, value) != value:
            raise ConfigError(
                f"servers have {kind} with {field}={value!r} only, got {group[field]!r}"
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
    _refuse(group, "Adam", amsgrad=False, decoupled_weight_decay=False)
    return optim.Adam(
        lr=float(group["lr"]),
        l2=float(group["weight_decay"]),
        betas=(float(group["betas"][0]), float(group["betas"][1])),
        eps=float(group["eps"]),
    )


def _adamw(group: Mapping[str, Any]) -> optim.Optimizer:
    _refuse(group, "AdamW", weight_decay=0)
    return _adam({**group, "decoupled_weight_decay": False})


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


_DESCRIBE: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], optim.Optimizer]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
}
