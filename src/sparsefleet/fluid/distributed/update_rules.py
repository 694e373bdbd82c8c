"""The tables of a program, and the servers' equivalents of its update operators and rates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.framework.sparse_parameter import optimizer_of
from sparsefleet.store.table_spec import state_names

__all__ = [
    "DenseTable",
    "ModelSource",
    "RateProgram",
    "ServedTables",
    "TableRates",
    "Update",
    "counter_names",
    "updates_of",
]


Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The operator that updates one parameter, and the equivalent optimizer on the servers."""

    parameter: Parameter
    gradient: str
    """The variable to send to the servers."""
    optimizer: optim.Optimizer
    """The optimizer. Its learning rate is ignored."""
    rate: str
    """The variable that holds the learning rate."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Maps each array of optimizer state to the variable that holds it in a single process."""
    powers: Mapping[str, float] = field(default_factory=dict)
    """Maps each variable that holds base ** (completed steps + 1) to its base."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The servers' optimizer for an update operator, and how its slots map to optimizer state."""

    describe: Callable[[Fields], optim.Optimizer]
    """Builds the optimizer from attrs and `first`, the initial value of the first accumulator."""
    state: Mapping[str, str] = field(default_factory=dict)
    powers: Mapping[str, str] = field(default_factory=dict)
    """Maps a slot to the attr that holds the base."""
    takes_decay: bool = True


def _betas(attrs: Fields) -> tuple[float, float]:
    return float(attrs["beta1"]), float(attrs["beta2"])


def _rmsprop(attrs: Fields) -> optim.Optimizer:
    return optim.FluidRMSProp(
        alpha=attrs["decay"],
        eps=attrs["epsilon"],
        momentum=attrs["momentum"],
        centered=attrs.get("centered", False),
    )


_RULES: dict[str, _Rule] = {
    "sgd": _Rule(lambda _: optim.SGD()),
    "momentum": _Rule(
        lambda attrs: optim.Momentum(
            momentum=attrs["mu"], nesterov=attrs.get("use_nesterov", False)
        ),
        {"buffer": "Velocity"},
    ),
    "adagrad": _Rule(
        lambda attrs: optim.Adagrad(eps=attrs["epsilon"], initial_accumulator=attrs["first"]),
        {"sum": "Moment"},
    ),
    "decayed_adagrad": _Rule(
        lambda attrs: optim.DecayedAdagrad(decay=attrs["decay"], eps=attrs["epsilon"]),
        {"moment": "Moment"},
    ),
    "adadelta": _Rule(
        lambda attrs: optim.FluidAdadelta(rho=attrs["rho"], eps=attrs["epsilon"]),
        {"square": "AvgSquaredGrad", "delta": "AvgSquaredUpdate"},
    ),
    "rmsprop": _Rule(
        _rmsprop,
        {"square": "MeanSquare", "mean": "MeanGrad", "buffer": "Moment"},
    ),
    # These optimizers apply their own decay as l2; a regularizer's decay stays in the gradient.
    "lars_momentum": _Rule(
        lambda attrs: optim.Lars(
            momentum=attrs["mu"],
            coefficient=attrs["lars_coeff"],
            l2=attrs["lars_weight_decay"],
        ),
        {"velocity": "Velocity"},
        takes_decay=False,
    ),
    "lamb": _Rule(
        lambda attrs: optim.Lamb(
            betas=_betas(attrs), eps=attrs["epsilon"], l2=attrs["weight_decay"]
        ),
        {"m": "Moment1", "v": "Moment2"},
        takes_decay=False,
    ),
    "adam": _Rule(
        lambda attrs: optim.Adam(betas=_betas(attrs), eps=attrs["epsilon"]),
        {"m": "Moment1", "v": "Moment2"},
        {"Beta1Pow": "beta1", "Beta2Pow": "beta2"},
    ),
    "adamax": _Rule(
        lambda attrs: optim.Adamax(betas=_betas(attrs), eps=attrs["epsilon"]),
        {"m": "Moment", "norm": "InfNorm"},
        {"Beta1Pow": "beta1"},
    ),
    "ftrl": _Rule(
        # The servers' formula has 2 * l2 where Fluid has l2.
        lambda attrs: optim.Ftrl(
            l1=attrs["l1"], l2=attrs["l2"] / 2, lr_power=attrs["lr_power"], lr=1.0
        ),
        {"squares": "SquaredAccumulator", "linear": "LinearAccumulator"},
        takes_decay=False,
    ),
}


def updates_of(program: Program, startup: Program, *, decay_here: bool = False) -> list[Update]:
    """Return the updates of a minimized program, in order.

    decay_here: keep weight decay in the gradient, for workers that update parameters themselves.
    Raises a ConfigError that names the update if servers do not support it.
    """
    makers = {name: op for op in program.global_block().ops for name in op.output_arg_names}
    found = []
    for op in program.global_block().ops:
        if op.role != "optimize" or not op.input("Param"):
            continue
        if op.type == "push_table":
            found.append(_of_table(program, op))
        else:
            found.append(_of_dense(program, startup, op, makers, decay_here))
    if not found:
        raise ConfigError("the program does not update any parameters; call minimize(loss) first")
    return found


def _of_table(program: Program, op: Operator) -> Update:
    parameter = _parameter(program, op)
    description = optimizer_of({**(parameter.table_optimizer or {}), "lr": 1.0})
    assert description is not None
    return Update(
        parameter=parameter,
        gradient=op.input("Grad")[0],
        optimizer=description,
        rate=op.input("LearningRate")[0],
    )


def _of_dense(
    program: Program,
    startup: Program,
    op: Operator,
    makers: Mapping[str, Operator],
    decay_here: bool,
) -> Update:
    parameter = _parameter(program, op)
    rule = _RULES.get(op.type)
    if rule is None:
        raise ConfigError(
            f"parameter '{parameter.name}' is updated by '{op.type}', which servers do not "
            f"support; they support {', '.join(sorted(_RULES))} (docs/coming_from_fluid.md)"
        )
    gradient = op.input("Grad")[0]
    decay: Mapping[str, float] = {}
    maker = makers.get(gradient)
    is_decayed = maker is not None and maker.type == "decay_gradient"
    if maker is not None and is_decayed and rule.takes_decay and not decay_here:
        gradient, decay = maker.input("Grad")[0], maker.attrs
    first = _first_value(startup, [op.input(slot)[0] for slot in rule.state.values()])
    described = rule.describe({**op.attrs, "first": first})
    kept, _ = state_names(described)
    return Update(
        parameter=parameter,
        gradient=gradient,
        optimizer=replace(described, lr=1.0, **decay),
        rate=op.input("LearningRate")[0],
        state={array: op.input(slot)[0] for array, slot in rule.state.items() if array in kept},
        powers={op.input(slot)[0]: op.attrs[attr] for slot, attr in rule.powers.items()},
    )


def _parameter(program: Program, op: Operator) -> Parameter:
    found = program.global_block().var(op.input("Param")[0])
    assert isinstance(found, Parameter)
    return found


def _first_value(startup: Program, names: Sequence[str]) -> float:
    """Return the constant that the startup program sets the first of these variables to, or 0."""
    for op in startup.global_block().ops:
        if names and op.type == "fill_constant" and op.output_arg_names == list(names[:1]):
            return float(op.attrs["value"])
    return 0.0


class RateProgram:
    """Computes learning rates at a given step with the program's own operators. Thread-safe.

    names: the variables that hold learning rates.
    first_values: a scope in which the startup program was run.
    """

    def __init__(self, program: Program, names: Sequence[str], first_values: Scope) -> None:
        self._names = list(dict.fromkeys(names))
        ops = _makers(program, self._names)
        self._program = program._copy_with(ops, list(program.list_vars()))
        self._program.remove_loaders()  # computing a rate must not consume a batch
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
        """Return whether the learning rates are constant."""
        return not self._counters

    def at(self, step: int) -> dict[str, float]:
        """Return a dict from variable to learning rate for the update that follows `step` steps."""
        with self._lock:
            for name, grows in self._counters.items():
                first = self._first[name]
                counted = (first + grows * step).astype(first.dtype)
                self._scope.var(name).get_tensor().set(counted)
            found = self._executor.run(self._program, fetch_list=self._names, scope=self._scope)
        return {n: float(v.reshape(-1)[0]) for n, v in zip(self._names, found, strict=True)}

    def counter_values(self, step: int) -> dict[str, np.ndarray]:
        """Return the values of the program's step counters after `step` steps."""
        return {
            name: (self._first[name] + grows * step).astype(self._first[name].dtype)
            for name, grows in self._counters.items()
        }

    def steps_at(self, counters: Mapping[str, float]) -> int:
        """Return the step at which `counter_values` gives these values, or 0 without counters."""
        steps = [
            round((counters[name] - float(self._first[name].reshape(-1)[0])) / grows)
            for name, grows in self._counters.items()
            if name in counters
        ]
        return max([0, *steps])


class TableRates:
    """A `modes.Schedule` for the learning rates of tables.

    rate_of: table -> the variable that holds the table's learning rate.
    """

    def __init__(self, rates: RateProgram, rate_of: Mapping[str, str]) -> None:
        self._rates = rates
        self._rate_of = dict(rate_of)

    def rates_at(self, step: int) -> dict[str, float]:
        """Return a dict from table to learning rate after `step` steps."""
        found = self._rates.at(step)
        return {table: found[name] for table, name in self._rate_of.items()}


def _makers(program: Program, names: Sequence[str]) -> list[Operator]:
    """Return the operators that compute these variables, in order."""
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
                f"the learning rate depends on '{name}', which is fed and not available on "
                "servers; compute it from the number of steps (fluid.layers.*_decay)"
            )
    return found[::-1]


def counter_names(program: Program, rates: Sequence[str]) -> list[str]:
    """Return the variables that count steps for these learning rates."""
    return list(_counters(_makers(program, rates)))


def _counters(ops: Sequence[Operator]) -> dict[str, float]:
    """Return a dict from step counter to its increment per step."""
    return {
        op.input("X")[0]: float(op.attrs.get("step", 1.0))
        for op in ops
        if op.type == "increment" and op.input("X") == op.output("Out")
    }


def _value(scope: Scope, name: str) -> np.ndarray:
    found = scope.find_var(name)
    if found is None or found.value() is None:
        raise ConfigError(f"the startup program does not initialize counter '{name}'")
    return np.array(found.get_tensor())


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
