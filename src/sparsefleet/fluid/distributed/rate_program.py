"""Extracts the part of a program that computes learning rates."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework import Operator, Program
from sparsefleet.fluid.framework.scope import Scope

__all__ = ["RateProgram", "TableRates", "counter_names"]


class RateProgram:
    """Computes rates for a number of steps with the program's own operators. Thread-safe.

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
        """Return whether the rates are constant."""
        return not self._counters

    def at(self, step: int) -> dict[str, float]:
        """Return variable -> rate of the update after `step` steps."""
        with self._lock:
            for name, grows in self._counters.items():
                first = self._first[name]
                counted = (first + grows * step).astype(first.dtype)
                self._scope.var(name).get_tensor().set(counted)
            found = self._executor.run(self._program, fetch_list=self._names, scope=self._scope)
        return {n: float(v.reshape(-1)[0]) for n, v in zip(self._names, found, strict=True)}

    def counter_values(self, step: int) -> dict[str, np.ndarray]:
        """Return the program's counters after `step` steps."""
        return {
            name: (self._first[name] + grows * step).astype(self._first[name].dtype)
            for name, grows in self._counters.items()
        }

    def steps_at(self, counters: Mapping[str, float]) -> int:
        """Return the step of these counters, the inverse of `counter_values`; 0 without any."""
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
        """Return table -> rate after `step` steps."""
        found = self._rates.at(step)
        return {table: found[name] for table, name in self._rate_of.items()}


def _makers(program: Program, names: Sequence[str]) -> list[Operator]:
    """Return the operators that compute the variables, in order."""
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
                "compute it from the number of steps (fluid.layers.*_decay)"
            )
    return found[::-1]


def counter_names(program: Program, rates: Sequence[str]) -> list[str]:
    """Return the variables that count steps for these rates."""
    return list(_counters(_makers(program, rates)))


def _counters(ops: Sequence[Operator]) -> dict[str, float]:
    """Return counter -> increment."""
    return {
        op.input("X")[0]: float(op.attrs.get("step", 1.0))
        for op in ops
        if op.type == "increment" and op.input("X") == op.output("Out")
    }


def _value(scope: Scope, name: str) -> np.ndarray:
    found = scope.find_var(name)
    if found is None or found.value() is None:
        raise ConfigError(f"the start-up program does not initialize counter '{name}'")
    return np.array(found.get_tensor())
