"""Translates the update operators of a program into optimizers of the servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.sparse_parameter import optimizer_of

__all__ = ["Update", "updates_of"]

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The update of one parameter."""

    parameter: Parameter
    gradient: str
    """The variable whose value is sent."""
    optimizer: optim.Optimizer
    """The optimizer; its rate is ignored."""
    rate: str
    """The variable with the learning rate."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Array of the optimizer's state -> the variable that holds it in a single process."""
    powers: Mapping[str, float] = field(default_factory=dict)
    """Variables that hold base ** (steps done + 1) -> that base."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The optimizer for an operator type, and how its slots map to the optimizer's state."""

    describe: Callable[[Fields], optim.Optimizer]
    """Builds the optimizer from attrs and `first`, the initial value of the first accumulator."""
    state: Mapping[str, str] = field(default_factory=dict)
    powers: Mapping[str, str] = field(default_factory=dict)
    """Slot -> attr with the base."""
    takes_decay: bool = True


def _betas(attrs: Fields) -> tuple[float, float]:
    return float(attrs["beta1"]), float(attrs["beta2"])


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

    decay_here: keep weight decay in the gradient, for workers that update themselves.
    Raises ConfigError naming an update that servers cannot do.
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
        raise ConfigError("the program updates no parameter: call minimize(loss) first")
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
    return Update(
        parameter=parameter,
        gradient=gradient,
        optimizer=replace(described, lr=1.0, **decay),
        rate=op.input("LearningRate")[0],
        state={array: op.input(slot)[0] for array, slot in rule.state.items()},
        powers={op.input(slot)[0]: op.attrs[attr] for slot, attr in rule.powers.items()},
    )


def _parameter(program: Program, op: Operator) -> Parameter:
    found = program.global_block().var(op.input("Param")[0])
    assert isinstance(found, Parameter)
    return found


def _first_value(startup: Program, names: Sequence[str]) -> float:
    """Return the initial value that the start-up program gives the first of these."""
    for op in startup.global_block().ops:
        if names and op.type == "fill_constant" and op.output_arg_names == list(names[:1]):
            return float(op.attrs["value"])
    return 0.0
