"""Compute a program's gradients with one operator that calls autograd."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import Block, Operator, Parameter, Variable, unique_name
from sparsefleet.fluid.framework.call_site import ProgramError, call_site
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.backward")

__all__ = ["append_backward", "calc_gradient", "computed_gradients", "gradients"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
    callbacks: Any = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Add the backward pass of a loss of shape [1]; return parameters and their gradients.

    checkpoints: variables or names to keep; activations between them are recomputed in this pass.
        By default, all activations are kept.

    Afterwards, the gradient of any variable that the loss depends on is named `<name>@GRAD`; for a
    second loss it is `<name>@GRAD_0`, and so on.
    """
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        raise TypeError(f"{call_site()}: callbacks must be a list, got {callbacks!r}")
    block = _block_of(loss)
    _check_names("parameter_list", parameter_list)
    if loss.shape not in ((1,), ()):
        raise ProgramError.at(
            call_site(), f"loss '{loss.name}'", f"must have shape [1], got {list(loss.shape)}"
        )
    _check_names("no_grad_set", no_grad_set)
    stopped = _stopped(block, no_grad_set)
    sources = _sources(block, [loss.name], stopped)
    made = _add(block, loss, None, sources)
    if checkpoints:
        names = [block.var(_name(item)).name for item in checkpoints]
        block.ops[-1]._set_attr("checkpoints", names)
    wanted = None if parameter_list is None else {_name(item) for item in parameter_list}
    return [
        (source, gradient)
        for source, gradient in zip(sources, made, strict=True)
        if isinstance(source, Parameter)
        and source.trainable
        and (wanted is None or source.name in wanted)
    ]


def computed_gradients(parameters: Sequence[Any] | None) -> list[tuple[Any, Any]]:
    """In imperative mode, return parameters and the gradients that `backward` computed."""
    from sparsefleet.fluid.dygraph.eager import hold_gradient

    if parameters is None:
        raise AttributeError("parameter_list must be given to an optimizer in imperative mode")
    return [
        (one, hold_gradient(one))
        for one in parameters
        if one.trainable and one.held().grad is not None
    ]


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[Variable | None]:
    """Return the summed gradients of targets with respect to inputs, with None for unrelated
    inputs.

    Values computed from these gradients also have gradients.
    """
    target_list = _as_list(targets)
    input_list = _as_list(inputs)
    given = _as_list(target_gradients) or [None] * len(target_list)
    if len(given) != len(target_list):
        raise ValueError(
            f"got {len(given)} target_gradients for {len(target_list)} targets, expected one per "
            "target"
        )
    for what, items in (("targets", target_list), ("inputs", input_list)):
        if any(not isinstance(item, Variable) for item in items):
            raise TypeError(f"{call_site()}: {what} must be Variables, got {items!r}")
    _check_names("no_grad_set", no_grad_set)
    block = _block_of(target_list[0])
    for target, gradient in zip(target_list, given, strict=True):
        _check_target(target, gradient)
    stopped = _stopped(block, no_grad_set)
    for variable in input_list:
        variable.stop_gradient = False
    with block.program.role_guard("backward"):
        target = target_list[0] if len(target_list) == 1 else _weighted_sum(target_list, given)
    sources = _sources(block, [target.name], stopped)
    own = given[0] if len(target_list) == 1 else None
    if own is not None:  # the target's own gradient is given
        sources = [source for source in sources if source is not target]
    made = _add(block, target, own, sources)
    for gradient in made:
        gradient.stop_gradient = False
    found = {source.name: gradient for source, gradient in zip(sources, made, strict=True)}
    if own is not None:
        found[target.name] = own
    return [found.get(variable.name) for variable in input_list]


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> Any:
    """Return the same as `gradients`, but, for a single input, its gradient rather than a list."""
    found = gradients(targets, inputs, target_gradients, no_grad_set)
    return found[0] if len(found) == 1 else found


def _check_names(what: str, items: Any) -> None:
    """Raise TypeError unless the argument is None or a collection of variables and names."""
    if items is None:
        return
    if isinstance(items, (Variable, str)) or not isinstance(items, (list, tuple, set, frozenset)):
        raise TypeError(f"{call_site()}: {what} must be a list or set, got {items!r}")
    for item in items:
        if not isinstance(item, (Variable, str)):
            raise TypeError(f"{call_site()}: {what} takes variables and names, got {item!r}")


def _check_target(target: Any, gradient: Any) -> None:
    if not isinstance(target, Variable):
        raise TypeError(f"targets must be Variables, got {target!r}")
    if gradient is None:
        return
    if not isinstance(gradient, Variable):
        raise TypeError(f"target_gradients must be Variables or None, got {gradient!r}")
    pairs = zip(gradient.shape, target.shape, strict=False)
    if len(gradient.shape) != len(target.shape) or any(
        one != two and -1 not in (one, two) for one, two in pairs
    ):
        raise ValueError(
            f"the gradient of target '{target.name}' has shape {list(gradient.shape)}, expected "
            f"{list(target.shape)}"
        )


def _weighted_sum(targets: Sequence[Variable], weights: Sequence[Variable | None]) -> Variable:
    """Return a scalar whose gradients are the sum of the targets' gradients."""
    from sparsefleet.fluid import layers

    totals = []
    for target, weight in zip(targets, weights, strict=True):
        part = target if weight is None else layers.elementwise_mul(target, weight)
        totals.append(layers.reduce_sum(part))
    return layers.sums(totals)


def _as_list(x: Any) -> list[Any]:
    if x is None:
        return []
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _append_grad_suffix_(name: str) -> str:
    return f"{name}@GRAD"


def _block_of(loss: Any) -> Block:
    if not isinstance(loss, Variable) or loss.block is None:
        raise TypeError(f"{call_site()}: the loss must be a Variable in a program, got {loss!r}")
    return loss.block


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name


def _stopped(block: Block, no_grad_set: Collection[Variable | str] | None) -> set[str]:
    """Return the variables at which this backward pass stops, so that they have no gradient."""
    names = {_name(item) for item in no_grad_set or ()}
    for op in block.ops:
        for name in names.intersection(op.output_arg_names):
            block.var(name).stop_gradient = True
    return names & set(block.visible_vars())


def _sources(block: Block, targets: Sequence[str], stopped: Collection[str]) -> list[Variable]:
    """Return the variables that affect the target and do not stop gradients."""
    known_vars = block.visible_vars()
    needed = set(targets)
    for op in reversed(block.ops):
        passed = {name for name in op.output_arg_names if _may_have_gradient(known_vars[name])}
        if op.role in ("forward", "backward") and needed & passed:
            needed.update(_read_by(op))
    return [
        variable
        for name, variable in known_vars.items()
        if name in needed and name not in stopped and _may_have_gradient(variable)
    ]


def _read_by(op: Operator) -> list[str]:
    """Return the variables that an operator's outputs depend on."""
    return op.input_arg_names + (op.attrs["sources"] if op.type == "backward" else [])


def _may_have_gradient(variable: Variable) -> bool:
    return not variable.stop_gradient and variable.dtype.startswith("float")


def _add(
    block: Block, target: Variable, given: Variable | None, sources: Sequence[Variable]
) -> list[Variable]:
    taken = {name for op in block.ops if op.type == "backward" for name in op.output("Gradients")}
    with block.program.role_guard("backward"):
        made = []
        for source in sources:
            name = source.grad_name
            while name in taken:  # belongs to a different loss, and may still be fetched
                name = unique_name.generate(source.grad_name)
            made.append(block.create_var(name, source.shape, source.dtype, stop_gradient=True))
        block.append_op(
            "backward",
            {"Loss": target, "TargetGradient": given},
            {"Gradients": made},
            {"sources": [source.name for source in sources]},
        )
    return made
