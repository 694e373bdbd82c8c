"""Fluid's imperative mode, in which layers compute immediately on torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from sparsefleet.fluid.framework import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    call_site,
    default_main_program,
    default_startup_program,
    in_dygraph_mode,
    program_guard,
    switch_main_program,
    switch_startup_program,
    unique_name,
)
from sparsefleet.fluid.framework.call_site import ProgramError
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.places import Place
from sparsefleet.fluid.lowering.shapes import flat_outputs, operator_def, slot_values

__all__ = [
    "BackwardStrategy",
    "ParamBase",
    "VarBase",
    "disable_dygraph",
    "disable_imperative",
    "enable_dygraph",
    "enable_imperative",
    "enabled",
    "grad",
    "guard",
    "in_dygraph_mode",
    "no_grad",
    "to_variable",
]


class _Eager(Variable):
    """Base class for variables that hold a value (in imperative mode)."""

    tensor: torch.Tensor | None = None
    _attached: torch.Tensor | None = None  # the value before stop_gradient detached it

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("stop_gradient", "trainable") and self.tensor is not None:
            stops = value if name == "stop_gradient" else not value
            if stops and not self.tensor.is_leaf:
                self._attached = self.tensor
                self.tensor = self.tensor.detach()
            elif not stops and self._attached is not None:
                self.tensor, self._attached = self._attached, None
            if self.tensor.is_leaf and self.tensor.is_floating_point():
                self.tensor.requires_grad_(not stops)

    def value(self) -> Any:
        """Return this variable, so that `x.value().get_tensor()` works."""
        return self

    def get_tensor(self) -> Any:
        """Return the value as a LoDTensor that shares its memory."""
        from sparsefleet.fluid.framework.lod_tensor import LoDTensor

        return LoDTensor(self.held().detach())

    def held(self) -> torch.Tensor:
        """Return the value. Raises ValueError if the variable has none."""
        if self.tensor is None:
            raise ValueError(f"{self!r} has no value, because it has not been computed")
        return self.tensor

    def hold(self, tensor: torch.Tensor) -> None:
        """Set the value to this tensor, without a copy."""
        self.tensor, self._attached = tensor, None
        super().__setattr__("shape", list(tensor.shape))  # a list in imperative mode, as in Fluid
        super().__setattr__("dtype", dtype_name(tensor.dtype))

    def numpy(self) -> Any:
        """Return the values as an array."""
        return np.array(self.held().detach().cpu().numpy())

    def set_value(self, value: Any) -> None:
        """Copy the values of an array or variable of the same shape."""
        given = value.held() if isinstance(value, _Eager) else torch.as_tensor(np.asarray(value))
        if tuple(given.shape) != tuple(self.shape):
            raise AssertionError(
                f"'{self.name}' has shape {list(self.shape)}, got values of shape "
                f"{list(given.shape)}"
            )
        if dtype_name(given.dtype) != self.dtype:
            raise AssertionError(f"'{self.name}' holds {self.dtype}, got {given.dtype}")
        with torch.no_grad():
            self.held().copy_(given)

    def backward(self, backward_strategy: Any = None) -> None:
        """Accumulate gradients in all variables that this variable was computed from."""
        del backward_strategy
        tensor = self.held()
        if tensor.requires_grad:
            torch.autograd.backward(tensor, torch.ones_like(tensor))

    def gradient(self) -> Any:
        """Return the gradient as an array, or None before `backward`."""
        found = self.held().grad
        return None if found is None else np.array(found.detach().cpu().numpy())

    def clear_gradient(self) -> None:
        """Set the gradient to 0."""
        self.held().grad = None

    def detach(self) -> VarBase:
        """Return a variable with the same value but without autograd history."""
        return _hold_new(self.held().detach(), stop_gradient=True)

    def clone(self) -> VarBase:
        """Return a copy that keeps the autograd history."""
        return _hold_new(self.held().clone())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        return np.array(self.numpy(), dtype=dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __float__(self) -> float:
        return float(self.held().detach())

    def __int__(self) -> int:
        return int(self.held().detach())

    def __index__(self) -> int:
        return int(self.held().detach())

    def __bool__(self) -> bool:
        return bool(self.held().detach())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.tensor})"

    __str__ = __repr__
    __hash__ = Variable.__hash__


class VarBase(_Eager):
    """The result of a layer, or a variable created from an array."""


class ParamBase(_Eager, Parameter):
    """A parameter with a value."""


class _EagerBlock(Block):
    """Computes each operator as it is added. Variables live as long as they are referenced."""

    def __init__(self, program: Program, idx: int) -> None:
        super().__init__(program, idx)
        self._kept: dict[str, Variable] = {}
        self.vars: Any = WeakValueDictionary()

    def has_var(self, name: str) -> bool:
        """Return False, because names from an earlier guard may be reused."""
        del name
        return False

    def add_var(self, variable: Variable) -> Variable:
        variable.block = self
        self.vars[variable.name] = variable
        if variable.persistable:
            self._kept[variable.name] = variable
        return variable

    def create_var(
        self,
        name: str | None = None,
        shape: Sequence[int | None] | None = None,
        dtype: Any = None,
        lod_level: int | None = None,
        **settings: Any,
    ) -> Variable:
        name = unique_name.generate("_generated_var") if name is None else name
        dtype = "float32" if dtype is None else dtype
        return self.add_var(VarBase(name, shape or (), dtype, lod_level or 0, **settings))

    def create_parameter(
        self,
        name: str | None = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        *,
        initializer: Any = None,
        **settings: Any,
    ) -> Parameter:
        name = unique_name.generate("_generated_var") if name is None else name
        settings["is_table"] = False
        made = ParamBase(name, shape, dtype, **settings)
        made.block = self
        self.vars[name] = made  # the code that created it keeps a reference
        if initializer is not None:
            initializer(made, self)
        return made

    def append_op(
        self,
        type: str,
        inputs: Any = None,
        outputs: Any = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        given, made = _slots(self, inputs), _slots(self, outputs)
        op = Operator(
            type,
            {slot: [x.name for x in found] for slot, found in given.items()},
            {slot: [x.name for x in found] for slot, found in made.items()},
            attrs,
            role=self.program.role,
            site=call_site(),
        )
        op.block = self
        if op.has_sub_block:
            raise ProgramError.at(
                op.site, type, "is for programs; in imperative mode use Python's if and while"
            )
        known = {x.name: x for found in (*given.values(), *made.values()) for x in found}
        with torch.set_grad_enabled(self.program.role == "forward" and _mode.tracks):
            _compute(op, known)
        return op


class _StartupBlock(_EagerBlock):
    """Writes initial values directly to the variables of the main block."""

    main: _EagerBlock

    def add_var(self, variable: Variable) -> Variable:
        found: Variable = self.main.vars.get(variable.name, variable)
        return found


def _slots(block: Block, slots: Any) -> dict[str, list[Variable]]:
    found: dict[str, list[Variable]] = {}
    for slot, value in (slots or {}).items():
        if value is not None:
            items = [value] if isinstance(value, (Variable, str)) else value
            found[slot] = [block.vars[x] if isinstance(x, str) else x for x in items]
    return found


def _compute(op: Operator, known: Mapping[str, Variable]) -> None:
    definition = operator_def(op)

    def value_of(name: str) -> Any:
        variable = known[name]
        if not isinstance(variable, _Eager):
            raise TypeError(
                f"{op.site}: {op.type}: {variable!r} belongs to a program and has no value here; "
                "create a variable from an array with dygraph.to_variable"
            )
        return variable.held()

    settings = {key: value for key, value in op.attrs.items() if key in definition.settings}
    if definition.lod_rule(op.attrs) == "function":
        settings["lods"] = slot_values(definition, op, lambda _: ())
    try:
        result = definition.function(*slot_values(definition, op, value_of), **settings)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ProgramError.at(op.site, op.type, str(error).partition("\n")[0]) from error
    if definition.in_place:
        return
    if definition.lod_rule(op.attrs) == "function":
        result = result[0]
    values = flat_outputs(result)
    place = 0
    for slot in definition.outputs:
        names = op.output(slot.name)
        for offset, name in enumerate(names):
            _put(known[name], values[place + offset])
        place += len(names) if slot.many else 1


def _put(variable: Any, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        variable.tensor = value
        return
    if isinstance(variable, ParamBase) or variable.persistable:
        fresh = value.detach().clone()
        if isinstance(variable, ParamBase) and value.is_floating_point():
            fresh.requires_grad_(variable.trainable)
        variable.hold(fresh)
        return
    if value.requires_grad and not value.is_leaf:
        value.retain_grad()
    variable.hold(value)
    Variable.__setattr__(variable, "stop_gradient", not value.requires_grad)


class _Mode:
    """The state of imperative mode in this process, including whether it is on."""

    def __init__(self) -> None:
        self.tracks = True
        self._programs: tuple[Program, Program] | None = None
        self.outside: tuple[Program, Program] | None = None

    def programs(self) -> tuple[Program, Program]:
        if self._programs is None:
            main, startup = Program(), Program()
            block, first = _EagerBlock(main, 0), _StartupBlock(startup, 0)
            first.main = block
            main.blocks, startup.blocks = [block], [first]
            main.is_eager = startup.is_eager = True
            self._programs = main, startup
        return self._programs


_mode = _Mode()


enabled = in_dygraph_mode


@contextmanager
def guard(place: Place | None = None) -> Iterator[None]:
    """Make layers in the `with` block compute immediately.

    >>> with guard():
    ...     print((to_variable(np.float32([1, 2])) * 2.0).numpy())
    [2. 4.]
    """
    del place
    with program_guard(*_mode.programs()), unique_name.guard():
        yield


def enable_dygraph(place: Place | None = None) -> None:
    """Make layers compute immediately until `disable_dygraph`."""
    del place
    if _mode.outside is None:
        _mode.outside = default_main_program(), default_startup_program()
        main, startup = _mode.programs()
        switch_main_program(main)
        switch_startup_program(startup)


def disable_dygraph() -> None:
    """Make layers build programs again."""
    if _mode.outside is not None:
        switch_main_program(_mode.outside[0])
        switch_startup_program(_mode.outside[1])
        _mode.outside = None


enable_imperative, disable_imperative = enable_dygraph, disable_dygraph


class BackwardStrategy:
    """Options for summing the gradients of a variable that is used several times. Has no effect.

    >>> BackwardStrategy().sort_sum_gradient
    False
    """

    sort_sum_gradient = False


class _NoGrad:
    """Disables gradient tracking; used as a decorator or a context manager (`with no_grad():`)."""

    def __call__(self, function: Callable[..., Any] | None = None) -> Any:
        if function is None:
            return self._context()

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._context():
                return function(*args, **kwargs)

        return call

    @contextmanager
    def _context(self) -> Iterator[None]:
        old, _mode.tracks = _mode.tracks, False
        try:
            yield
        finally:
            _mode.tracks = old


no_grad = _NoGrad()


def _hold_new(
    tensor: torch.Tensor, name: str | None = None, stop_gradient: bool | None = None
) -> VarBase:
    made = VarBase(name or unique_name.generate("generated_tensor"), (), "float32")
    made.hold(tensor)
    made.stop_gradient = not tensor.requires_grad if stop_gradient is None else stop_gradient
    _mode.programs()[0].global_block().add_var(made)
    return made


def to_variable(value: Any, name: str | None = None, zero_copy: bool | None = None) -> Any:
    """Create a variable with the values of an array. By default, it gets no gradient."""
    if isinstance(value, _Eager):
        return value
    if not enabled():
        raise AssertionError(
            f"{call_site()}: to_variable must be called within fluid.dygraph.guard()"
        )
    if hasattr(value, "numpy") and not isinstance(value, torch.Tensor):
        value = value.numpy()
    if not isinstance(value, (np.ndarray, torch.Tensor, list, tuple, float, int, np.generic)):
        raise TypeError(f"to_variable takes an array, a list or a number, got {value!r}")
    if isinstance(value, torch.Tensor):
        return _hold_new(value.detach(), name, stop_gradient=True)
    array = np.asarray(value)
    tensor = torch.from_numpy(array if zero_copy and array.flags.writeable else array.copy())
    return _hold_new(tensor, name, stop_gradient=True)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
    no_grad_vars: Any = None,
    backward_strategy: Any = None,
) -> list[Any]:
    """Return the gradients of outputs with respect to inputs.

    With create_graph, the gradients can be differentiated again.
    """
    del only_inputs, no_grad_vars, backward_strategy
    targets = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    sources = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    given = grad_outputs if isinstance(grad_outputs, (list, tuple)) else [grad_outputs]
    given = list(given) + [None] * (len(targets) - len(given))
    found = torch.autograd.grad(
        [target.held() for target in targets],
        [source.held() for source in sources],
        [
            torch.ones_like(target.held()) if one is None else one.held()
            for target, one in zip(targets, given, strict=True)
        ],
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
    )
    return [None if one is None else _hold_new(one) for one in found]


def hold_gradient(parameter: ParamBase) -> VarBase:
    """Return a variable that holds a parameter's gradient."""
    found = parameter.held().grad
    assert found is not None
    return _hold_new(found.detach(), f"{parameter.name}@GRAD", stop_gradient=True)


def kept_variable(name: str, value: Any) -> VarBase:
    """Return a persistent variable with this name that holds a copy of `value`."""
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    made = _hold_new(torch.from_numpy(array.copy()), name, stop_gradient=True)
    made.persistable = True
    return made
