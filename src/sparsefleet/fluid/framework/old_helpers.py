"""Small utilities that Fluid's modules offer in addition to layers."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "autodoc",
    "check_import_scipy",
    "deprecated",
    "generate_activation_fn",
    "generate_layer_fn",
    "get_logger",
    "run_check",
    "signature_safe_contextmanager",
    "templatedoc",
    "wrap_decorator",
]

Function = Callable[..., Any]

signature_safe_contextmanager = contextlib.contextmanager


def get_logger(name: str, level: int | str, fmt: str | None = None) -> logging.Logger:
    """Return a logger that writes to stderr in this format and does not propagate.

    >>> get_logger("trainer", logging.INFO).level == logging.INFO
    True
    """
    logger = logging.getLogger(name)
    logger.setLevel(level)
    handler = logging.StreamHandler()
    if fmt:
        handler.setFormatter(logging.Formatter(fmt))
    logger.addHandler(handler)
    logger.propagate = False
    return logger


def wrap_decorator(decorator_func: Callable[[Function], Function]) -> Callable[..., Function]:
    """Make a decorator preserve the name, docstring and signature of the functions it wraps."""

    def decorate(function: Function) -> Function:
        return functools.wraps(function)(decorator_func(function))

    return decorate


def deprecated(since: str, instead: str, extra_message: str = "") -> Callable[[Function], Function]:
    """Warn at each call that a function is deprecated."""

    def decorate(function: Function) -> Function:
        message = f"{function.__name__} is deprecated since {since}; use {instead}. {extra_message}"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(message.strip(), DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return decorate


def autodoc(comment: str = "") -> Callable[[Function], Function]:
    """Set a layer's docstring to `comment` or, if that is empty, to a default."""

    def decorate(function: Function) -> Function:
        function.__doc__ = comment or f"The layer {function.__name__}."
        return function

    return decorate


def templatedoc(op_type: str | None = None) -> Callable[[Function], Function]:
    """Keep a layer's documentation, without the template fields that Fluid fills in."""
    del op_type
    return lambda function: function


def generate_layer_fn(op_type: str) -> Function:
    """Return a layer that adds the operator.

    The layer takes inputs and attrs by keyword; inputs may also be positional.

    >>> generate_layer_fn("elementwise_add").__name__
    'elementwise_add'
    """
    from sparsefleet.fluid.lowering.registry import find_op
    from sparsefleet.fluid.operators.layer_helper import LayerHelper

    definition = find_op(op_type)
    if definition is None:
        raise ValueError(
            f"operator '{op_type}' is unknown, expected a type that sparsefleet supports"
        )

    def add(*args: Any, **kwargs: Any) -> Any:
        helper = LayerHelper(op_type, kwargs.pop("name", None))
        given = dict(zip((slot.name for slot in definition.inputs), args, strict=False))
        by_lower = {slot.name.lower(): slot.name for slot in definition.inputs}
        attrs = {}
        for name, value in kwargs.items():
            if name.lower() in by_lower:
                given[by_lower[name.lower()]] = value
            elif name not in ("act", "out"):
                attrs[name] = value
        first = next((x for x in given.values() if hasattr(x, "dtype")), None)
        out = kwargs.get("out") or helper.new_variable("float32" if first is None else first.dtype)
        helper.append_op(op_type, given, {definition.outputs[0].name: out}, attrs)
        return helper.activate(out, kwargs.get("act"))

    add.__name__ = op_type
    return add


def generate_activation_fn(op_type: str) -> Function:
    """Return a layer with one input `x` that adds the operator."""
    layer = generate_layer_fn(op_type)

    def activate(x: Any, name: str | None = None) -> Any:
        return layer(x, name=name)

    activate.__name__ = op_type
    return activate


def check_import_scipy(os_name: str) -> None:
    """Do nothing; Fluid checks for missing SciPy libraries on Windows."""


def run_check() -> None:
    """Train a layer for one step, on one place and then on two places, and report success."""
    from sparsefleet import fluid

    for places in (1, 2):
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with (
            fluid.scope_guard(scope),
            fluid.program_guard(main, startup),
            fluid.unique_name.guard(),
        ):
            x = fluid.data("install_check_x", [None, 2])
            loss = fluid.layers.reduce_sum(fluid.layers.fc(x, size=3))
            fluid.optimizer.SGD(learning_rate=0.01).minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            compiled = fluid.CompiledProgram(main).with_data_parallel(
                loss_name=loss.name, places=fluid.cpu_places(places)
            )
            feed = {"install_check_x": np.ones((2 * places, 2), "float32")}
            (found,) = exe.run(compiled, feed=feed, fetch_list=[loss])
            if not np.isfinite(found).all():
                raise RuntimeError(f"the loss on {places} places is {found}, expected a number")
    print("Your Paddle Fluid is installed successfully! Fluid runs on sparsefleet.")
