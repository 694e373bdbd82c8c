"""Gradients of a program: one operator, behind which autograd works."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.call_site import ProgramError, call_site
from sparsefleet.fluid.framework import Block, Parameter, Variable
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.backward")

__all__ = ["append_backward", "gradients"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
    callbacks: Any = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Adds the backward pass of a loss of shape [1]: parameters and their gradients.

    checkpoints: variables, or names, between which activations are computed again in this pass
    and not kept until then. By default all are kept.

    The gradient of any variable that the loss depends on is `<name>@GRAD` from then on, that of
    another loss `<name>@GRAD_0` and so on.
    """
    del callbacks
    block = _block_of(loss)
    if loss.shape not in ((1,), ()):
        raise ProgramError.at(
            call_site(), f"loss '{loss.name}'", f"must have shape [1], got {list(loss.shape)}"
        )
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


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[Variable | None]:
    """Gradients of targets by inputs; None for an input that they do not depend on."""
    target_list = [targets] if isinstance(targets, Variable) else list(targets)
    input_list = [inputs] if isinstance(inputs, Variable) else list(inputs)
    given = [target_gradients] if isinstance(target_gradients, Variable) else target_gradients
    if len(target_list) != 1:
        raise ProgramError.at(call_site(), "gradients", "takes one target: sum them up first")
    block = _block_of(target_list[0])
    stopped = _stopped(block, no_grad_set)
    for variable in input_list:
        variable.stop_gradient = False
    also = {item.name for item in input_list}
    sources = _sources(block, [target_list[0].name], stopped, also)
    made = _add(block, target_list[0], given[0] if given else None, sources)
    found = {source.name: gradient for source, gradient in zip(sources, made, strict=True)}
    return [found.get(variable.name) for variable in input_list]


def _block_of(loss: Any) -> Block:
    if not isinstance(loss, Variable) or loss.block is None:
        raise TypeError(f"{call_site()}: the loss must be a Variable of a program, got {loss!r}")
    return loss.block


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name


def _stopped(block: Block, no_grad_set: Collection[Variable | str] | None) -> set[str]:
    """What gets no gradient in this backward pass; what is computed stops those of others too."""
    names = {_name(item) for item in no_grad_set or ()}
    for op in block.ops:
        for name in names.intersection(op.output_arg_names):
            block.var(name).stop_gradient = True
    return {block.var(name).name for name in names}


def _sources(
    block: Block, targets: Sequence[str], stopped: Collection[str], also: Collection[str] = ()
) -> list[Variable]:
    """Variables with a gradient: they have an effect on the target, and something is trained."""
    needed = set(targets)
    path = []
    for op in reversed(block.ops):
        passed = {name for name in op.output_arg_names if _may_have_gradient(block.vars[name])}
        if op.role == "forward" and needed & passed:
            needed.update(op.input_arg_names)
            path.append(op)
    known = {
        name
        for name in needed
        if (isinstance(block.vars[name], Parameter) or block.vars[name].is_data or name in also)
        and _may_have_gradient(block.vars[name])
        and name not in stopped
    }
    for op in reversed(path):
        if known.intersection(op.input_arg_names):
            known.update(
                name for name in op.output_arg_names if _may_have_gradient(block.vars[name])
            )
    return [variable for name, variable in block.vars.items() if name in known & needed]


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
            while name in taken:  # by another loss, and may still be fetched
                name = unique_name.generate(source.grad_name)
            made.append(block.create_var(name, source.shape, source.dtype, stop_gradient=True))
        block.append_op(
            "backward",
            {"Loss": target, "TargetGradient": given},
            {"Gradients": made},
            {"sources": [source.name for source in sources]},
        )
    return made
