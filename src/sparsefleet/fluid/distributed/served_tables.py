"""Which tables on the servers hold the parameters of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsefleet import optim
from sparsefleet.fluid.distributed.update_rules import Update

__all__ = ["DenseTable", "ServedTables"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseTable:
    """Parameters that are updated alike, one after another."""

    name: str
    optimizer: optim.Optimizer
    """Its rate does not count."""
    rate: str
    """The variable with the learning rate."""
    updates: tuple[Update, ...]


class ServedTables:
    """The dense tables of a program by what updates them; a parameter with rows is its own table.

    name: of the training; other programs on the same servers have others.
    """

    def __init__(self, updates: Sequence[Update], name: str) -> None:
        self.updates = list(updates)
        self.sparse = {u.parameter.name: u for u in updates if u.parameter.is_table}
        """Updates of parameters in tables of their own, by name."""
        groups: dict[tuple[optim.Optimizer, str], list[Update]] = {}
        for update in updates:
            if not update.parameter.is_table:
                groups.setdefault((update.optimizer, update.rate), []).append(update)
        self.dense = [
            DenseTable(
                name=f"{name}/dense@{number}",
                optimizer=optimizer,
                rate=rate,
                updates=tuple(members),
            )
            for number, ((optimizer, rate), members) in enumerate(groups.items())
        ]

    def rate_of(self) -> dict[str, str]:
        """Table -> the variable with its rate."""
        rates = {table.name: table.rate for table in self.dense}
        return rates | {name: update.rate for name, update in self.sparse.items()}


def at_rate(optimizer: optim.Optimizer, rate: float) -> optim.Optimizer:
    """The description, beginning with this rate."""
    return replace(optimizer, lr=rate)
