"""The part of a program that computes learning rates, apart from the rest."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Operator, Program
from sparsefleet.fluid.scope import Scope

__all__ = ["RateProgram", "TableRates", "counter_names"]


class RateProgram:
    """Rates by the number of steps done, from the operators that make them. Thread-safe.

    names: the variables with rates.
    first_values: a scope in which the start-up program was run.
    """

    def __init__(self, program: Program, names: Sequence[str], first_values: Scope) -> None:
        self._names = list(dict.fromkeys(names))
        ops = _makers(program, self._names)
        self._program = program._copy_with(ops, list(program.list_vars()))
        self._counters = _counters(ops)
        self._scope = Scope()
        self._first = {name: _value(first_values, name) for name in self._counters}
        for name in {name for op in ops for name in op.input_arg_names} | set(self._names):
            found = first_values.find_var(name)
            if found is not None and found.value() is not None:
                self._scope.var(name).get_tensor().set(np.array(found.get_tensor()))
        self._executor = Executor()
        self._lock = threading.Lock()

    @property
    def is_constant(self) -> bool:
        """Whether the rates stay what they are at first."""
        return not self._counters

    def at(self, step: int) -> dict[str, float]:
        """Variable -> rate of the update after `step` steps."""
        with self._lock:
            for name, grows in self._counters.items():
                first = self._first[name]
                counted = (first + grows * step).astype(first.dtype)
                self._scope.var(name).get_tensor().set(counted)
            found = self._executor.run(self._program, fetch_list=self._names, scope=self._scope)
        return {n: float(v.reshape(-1)[0]) for n, v in zip(self._names, found, strict=True)}

    def counter_values(self, step: int) -> dict[str, np.ndarray]:
        """The program's counters as they are after `step` steps."""
        return {
            name: (self._first[name] + grows * step).astype(self._first[name].dtype)
            for name, grows in self._counters.items()
        }

    def steps_at(self, counters: Mapping[str, float]) -> int:
        """The inverse of `counter_values`: 0 without counters."""
        steps = [
            round((counters[name] - float(self._first[name].reshape(-1)[0])) / grows)
            for name, grows in self._counters.items()
            if name in counters
        ]
        return max([0, *steps])


class TableRates:
    """`modes.Schedule`: the rates of tables.

    rate_of: table -> the variable with its rate.
    """

    def __init__(self, rates: RateProgram, rate_of: Mapping[str, str]) -> None:
        self._rates = rates
        self._rate_of = dict(rate_of)

    def rates_at(self, step: int) -> dict[str, float]:
        """Table -> rate after `step` steps."""
        found = self._rates.at(step)
        return {table: found[name] for table, name in self._rate_of.items()}


def _makers(program: Program, names: Sequence[str]) -> list[Operator]:
    """The operators that the variables come from, in order."""
    block = program.global_block()
    wanted = set(names)
    found: list[Operator] = []
    for op in reversed(block.ops):
        if wanted.intersection(op.output_arg_names):
            wanted.update(op.input_arg_names)
            found.append(op.copy())
    for name in sorted(wanted):
        if block.var(name).is_data:
            raise ConfigError(
                f"the learning rate depends on '{name}', which is fed: servers cannot know it; "
                "make it of the number of steps (fluid.layers.*_decay)"
            )
    return found[::-1]


def counter_names(program: Program, rates: Sequence[str]) -> list[str]:
    """The variables that count steps for these rates."""
    return list(_counters(_makers(program, rates)))


def _counters(ops: Sequence[Operator]) -> dict[str, float]:
    """Counter -> what it grows by."""
    return {
        op.input("X")[0]: float(op.attrs.get("step", 1.0))
        for op in ops
        if op.type == "increment" and op.input("X") == op.output("Out")
    }


def _value(scope: Scope, name: str) -> np.ndarray:
    found = scope.find_var(name)
    if found is None or found.value() is None:
        raise ConfigError(f"the start-up program gives counter '{name}' no first value")
    return np.array(found.get_tensor())
