"""The tables on the servers that hold a program's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsefleet import optim
from sparsefleet.fluid.distributed.update_rules import Update
from sparsefleet.fluid.framework import Program

__all__ = ["DenseTable", "ModelSource", "ServedTables"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseTable:
    """Concatenated parameters with the same update rule, or one parameter if the rule needs its
    norm.
    """

    name: str
    optimizer: optim.Optimizer
    """The optimizer. Its learning rate is ignored."""
    rate: str
    """The variable that holds the learning rate."""
    updates: tuple[Update, ...]


class ServedTables:
    """The tables of a program: dense tables, one per update rule, and one table per sparse
    parameter.

    name: the name of the training run; programs on the same servers need different names.
    """

    def __init__(self, updates: Sequence[Update], name: str) -> None:
        self.updates = list(updates)
        self.sparse = {u.parameter.name: u for u in updates if u.parameter.is_table}
        """Updates of parameters that have their own tables, by name."""
        groups: dict[tuple[optim.Optimizer, str, str], list[Update]] = {}
        for update in updates:
            if not update.parameter.is_table:
                alone = update.parameter.name if update.optimizer.needs_norms else ""
                groups.setdefault((update.optimizer, update.rate, alone), []).append(update)
        self.dense = [
            DenseTable(
                name=f"{name}/dense@{number}",
                optimizer=optimizer,
                rate=rate,
                updates=tuple(members),
            )
            for number, ((optimizer, rate, _), members) in enumerate(groups.items())
        ]

    def rate_of(self) -> dict[str, str]:
        """Return a dict from table to the variable that holds its learning rate."""
        rates = {table.name: table.rate for table in self.dense}
        return rates | {name: update.rate for name, update in self.sparse.items()}


def at_rate(optimizer: optim.Optimizer, rate: float) -> optim.Optimizer:
    """Return a copy of the optimizer with this initial learning rate."""
    return replace(optimizer, lr=rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A program after `minimize`, before it is converted for a process's role."""

    program: Program
    startup: Program
    tables: ServedTables
    name: str
    """Name of the training run on the servers."""
    min_block_size: int = 8192
    """Minimum number of a dense table's elements on each server that holds part of the table."""
