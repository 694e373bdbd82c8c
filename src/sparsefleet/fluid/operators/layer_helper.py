"""LayerHelper, which creates a layer's names, parameters and operators, and argument checks."""

from __future__ import annotations

import csv
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sparsefleet.fluid.framework import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    in_dygraph_mode,
    unique_name,
)
from sparsefleet.fluid.framework.call_site import ProgramError, call_site, raised_inside
from sparsefleet.fluid.framework.dtypes import UnknownDtypeError, dtype_name
from sparsefleet.fluid.framework.initializer import Constant, Initializer, Xavier
from sparsefleet.fluid.framework.param_attr import (
    ExistingParamAttr,
    ParamAttr,
    WeightNormParamAttr,
    to_param_attr,
)
from sparsefleet.fluid.framework.variable import ARRAY
from sparsefleet.fluid.lowering.registry import find_op
from sparsefleet.fluid.lowering.tables import LOOKUPS

__all__ = [
    "LayerHelper",
    "check_arguments",
    "check_dtype",
    "check_type",
    "check_variable_and_dtype",
    "convert_dtype",
    "layer",
    "named",
    "op_settings",
]


_LOCATED = re.compile(r".*:\d+: ")  # a message that already names the line of code

P = ParamSpec("P")

R = TypeVar("R")


def layer(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a layer so that invalid arguments are reported at the user's line."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(signature.parameters)
            message = f"{call_site()}: layers.{function.__name__}: {error}; it takes {takes}"
            raise TypeError(message) from None
        try:
            check_arguments(function.__name__, bound.arguments)
            return function(*args, **kwargs)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            if _LOCATED.match(str(error)) or not raised_inside(error):
                raise
            message = f"{call_site()}: layers.{function.__name__}: {error}"
            raise _reported_type(error)(message) from error

    return call


def named(name: str, doc: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function shared by several layers the name and docstring of one layer."""

    def rename(function: Callable[P, R]) -> Callable[P, R]:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        return function

    return rename


def op_settings(op_type: str, arguments: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return an operator's attrs from its layer's arguments, given as `locals()`.

    Operators and layers use the same names, Fluid's, so only `others`, which have a different name
    or value in the operator, must be listed.
    """
    found = find_op(op_type)
    known = found.settings if found is not None else frozenset()
    return {name: value for name, value in arguments.items() if name in known} | others


class _WrongArgumentError(ProgramError, TypeError):
    """Raised for an argument without the attributes a layer needs, such as an array."""


def _reported_type(error: Exception) -> type[Exception]:
    if isinstance(error, UnknownDtypeError):
        return UnknownDtypeError
    if isinstance(error, AttributeError):
        return _WrongArgumentError
    return TypeError if isinstance(error, TypeError) else ProgramError


class LayerHelper:
    """Adds one layer to the default programs.

    name: the layer's name, given by the user; None means the layer's type and a number.
    kwargs: the layer's other arguments, as in `LayerHelper("my_layer", **locals())`.

    >>> with unique_name.guard():
    ...     LayerHelper("fc").name
    'fc_0'
    """

    def __init__(self, layer_type: str, name: str | None = None, **kwargs: Any) -> None:
        self.layer_type = layer_type
        self.kwargs = {**kwargs, "name": name}
        self.name = unique_name.generate(layer_type) if name is None else name

    @property
    def param_attr(self) -> ParamAttr | None:
        return to_param_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | None:
        return to_param_attr(self.kwargs.get("bias_attr"))

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """Return the inputs as a list."""
        given = self.kwargs.get(input_param_name, [])
        return [given] if isinstance(given, Variable) else list(given)

    def input(self, input_param_name: str = "input") -> Variable:
        """Return the layer's only input; raise an error if there are several."""
        inputs = self.multiple_input(input_param_name)
        if len(inputs) != 1:
            raise ValueError(f"expected one input '{input_param_name}', got {len(inputs)}")
        return inputs[0]

    def input_dtype(self, input_param_name: str = "input") -> str:
        """Return the common dtype of the inputs."""
        found = {variable.dtype for variable in self.multiple_input(input_param_name)}
        if len(found) != 1:
            raise ValueError(f"inputs must have the same dtype, got {sorted(found)}")
        return found.pop()

    def iter_inputs_and_params(
        self, input_param_name: str = "input"
    ) -> Iterator[tuple[Variable, ParamAttr | None]]:
        """Iterate over the inputs with their parameter attrs, given as one attr for all inputs or
        as a list.
        """
        inputs = self.multiple_input(input_param_name)
        return iter(zip(inputs, self.multiple_param_attr(len(inputs)), strict=True))

    @property
    def main_program(self) -> Program:
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        return default_startup_program()

    def check_input(self, value: Any, what: str = "input") -> Variable:
        """Return the value if it is a variable; otherwise raise TypeError."""
        if not isinstance(value, Variable):
            raise TypeError(
                f"{call_site()}: layers.{self.layer_type}: {what} must be a Variable in the "
                f"program, got {value!r}"
            )
        return value

    def refuse(self, message: str) -> ProgramError:
        """Return an error for this layer at the user's line."""
        return ProgramError.at(call_site(), f"layers.{self.layer_type}", message)

    # -- variables ----------------------------------------------------------------------------

    def new_variable(
        self, dtype: Any = "float32", stop_gradient: bool = False, *, lod_level: int = 0
    ) -> Variable:
        """Create a temporary variable, named `fc_0.tmp_0` and so on."""
        name = unique_name.generate(f"{self.name}.tmp")
        return self.main_program.current_block().create_var(
            name, dtype=dtype, stop_gradient=stop_gradient, lod_level=lod_level
        )

    create_variable_for_type_inference = new_variable

    create_tmp_variable = new_variable

    def create_variable(self, *args: Any, **settings: Any) -> Variable:
        """Create a variable in the current block, by default named `_generated_var_0` and so on."""
        return self.main_program.current_block().create_var(*args, **settings)

    def skip_names(self, count: int) -> None:
        """Skip the names of variables that Fluid creates at this point but this package does not
        need.
        """
        for _ in range(count):
            unique_name.generate(f"{self.name}.tmp")

    def create_parameter(
        self,
        attr: ParamAttr | None,
        shape: Sequence[int],
        dtype: Any = "float32",
        is_bias: bool = False,
        default_initializer: Initializer | None = None,
        *,
        is_table: bool = False,
    ) -> Parameter:
        """Return the existing parameter that `attr` names, or a new one, initialized at startup."""
        attr = attr or ParamAttr()
        if isinstance(attr, ExistingParamAttr) and in_dygraph_mode():
            return attr.parameter  # type: ignore[no-any-return]
        suffix = "b" if is_bias else "w"
        name = attr.name or unique_name.generate(f"{self.name}.{suffix}")
        if isinstance(attr, WeightNormParamAttr):
            return self._normalized_weight(name, attr, shape, dtype)  # type: ignore[return-value]
        block = self.main_program.global_block()
        is_new = not block.has_var(name)
        made = block.create_parameter(
            name,
            shape,
            dtype,
            trainable=attr.trainable,
            learning_rate=attr.learning_rate,
            regularizer=attr.regularizer,
            gradient_clip=attr.gradient_clip,
            do_model_average=attr.do_model_average,
            is_table=is_table,
        )
        startup = self.startup_program.global_block()
        if is_new and not startup.has_var(name):
            first = attr.initializer or default_initializer or (Constant() if is_bias else Xavier())
            first(startup.add_var(made.copy()), startup)
        return made

    def _normalized_weight(
        self, name: str, attr: WeightNormParamAttr, shape: Sequence[int], dtype: Any
    ) -> Variable:
        """Return a parameter computed from a norm and a direction; see `WeightNormParamAttr`."""
        plain: dict[str, Any] = {
            "learning_rate": attr.learning_rate,
            "regularizer": attr.regularizer,
            "trainable": attr.trainable,
        }
        first = ParamAttr(f"{name}_v", attr.initializer, **plain)
        direction = self.create_parameter(first, shape, dtype)
        sizes = [1] if attr.dim is None else [shape[attr.dim]]
        length = self.create_parameter(ParamAttr(f"{name}_g", Constant(1.0), **plain), sizes, dtype)
        startup = self.startup_program.global_block()
        attrs = {"dim": -1 if attr.dim is None else attr.dim}
        startup.append_op(
            "weight_norm_length",
            {"V": startup.vars[direction.name]},
            {"Out": startup.vars[length.name]},
            attrs,
        )
        return self.add("weight_norm", {"V": direction, "G": length}, attrs, dtype=dtype)

    def create_state(
        self, name: str, shape: Sequence[int], dtype: Any, value: float = 0.0
    ) -> Variable:
        """Create a variable that is kept between runs, not trained, and starts with `value`."""
        settings = {"persistable": True, "stop_gradient": True}
        made = self.main_program.global_block().create_var(name, shape, dtype, **settings)
        startup = self.startup_program.global_block()
        if not startup.has_var(name):
            Constant(value)(startup.add_var(made.copy()), startup)
        return made

    # -- operators ----------------------------------------------------------------------------

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Add an operator.

        A parameter stored as table rows becomes a single tensor if the operator reads it.
        """
        made = self.main_program.current_block().append_op(type, inputs, outputs, attrs)
        if type not in LOOKUPS and made.role == "forward":
            for name in made.input_arg_names:
                make_plain(self.main_program, self.startup_program, name)
        return made

    def add(
        self,
        type: str,
        inputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        slot: str = "Out",
        dtype: Any = "float32",
        stop_gradient: bool = False,
        out: Variable | None = None,
    ) -> Variable:
        """Add an operator with one output; return the output: a new variable, or `out`.

        dtype: the output's type, for operators whose type cannot be inferred.
        """
        out = self.new_variable(dtype, stop_gradient=stop_gradient) if out is None else out
        self.append_op(type, inputs, {slot: out}, attrs)
        return out

    def add_all(
        self,
        type: str,
        inputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
        dtypes: Sequence[Any] = (),
        *,
        stop_gradient: bool = False,
    ) -> list[Variable]:
        """Add an operator with several outputs; return a new variable for each output slot."""
        found = find_op(type)
        assert found is not None, type
        made = [self.new_variable(kind) for kind in dtypes or ["float32"] * len(found.outputs)]
        slots = [slot.name for slot in found.outputs]
        self.append_op(type, inputs, dict(zip(slots, made, strict=True)), attrs)
        for variable in made if stop_gradient else ():
            variable.stop_gradient = True
        return made

    def add_bias(self, x: Variable, attr: Any, axis: int) -> Variable:
        """Add a bias with the shape of x's axes from `axis` on, unless attr is False."""
        known = to_param_attr(attr)
        if known is None:
            return x
        bias = self.create_parameter(known, x.shape[axis:], x.dtype, is_bias=True)
        return self.add("elementwise_add", {"X": x, "Y": bias}, {"axis": axis})

    def activate(self, x: Variable, act: str | Mapping[str, Any] | None) -> Variable:
        """Apply an activation to x, given by name or by a dict with `type` and settings."""
        if act is None:
            return x
        settings = {"type": act} if isinstance(act, str) else dict(act)
        return self.add(settings.pop("type"), {"X": x}, settings)

    # -- for user-defined layers --------------------------------------------------------------

    def append_bias_op(
        self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None
    ) -> Variable:
        """Add a bias with the shape of axes dim_start..dim_end, unless bias_attr is False."""
        attr = self.bias_attr
        if attr is None:
            return input_var
        shape = input_var.shape[dim_start:dim_end]
        bias = self.create_parameter(attr, shape, input_var.dtype, is_bias=True)
        return self.add("elementwise_add", {"X": input_var, "Y": bias}, {"axis": dim_start})

    def append_activation(self, input_var: Variable) -> Variable:
        """Apply the activation `act` to the variable."""
        return self.activate(input_var, self.kwargs.get("act"))

    def create_global_variable(
        self,
        persistable: bool = False,
        name: str | None = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        **settings: Any,
    ) -> Variable:
        """Create a variable in the program's first block."""
        return self.main_program.global_block().create_var(
            name, shape, dtype, persistable=persistable, **settings
        )

    def create_or_get_global_variable(self, name: str, **settings: Any) -> tuple[Variable, bool]:
        """Return the variable with this name in the program's first block, and whether it is new.

        settings: passed to `create_global_variable` if the variable does not exist.
        """
        found = self.main_program.global_block().vars.get(name)
        if found is not None:
            return found, False
        return self.create_global_variable(name=name, **settings), True

    def get_parameter(self, name: str) -> Parameter:
        """Return the parameter with this name."""
        found = self.main_program.global_block().var(name)
        if not isinstance(found, Parameter):
            raise ValueError(f"no Parameter name {name} found")
        return found

    def is_instance(self, param_name: str, cls: Any) -> None:
        """Raise TypeError unless this argument of the layer is an instance of `cls`."""
        given = self.kwargs.get(param_name)
        if not isinstance(given, cls):
            wanted = getattr(cls, "__name__", cls)
            raise TypeError(
                f"{self.layer_type}: {param_name} must be a {wanted}, got a {type(given).__name__}"
            )

    def multiple_param_attr(self, length: int) -> list[ParamAttr | None]:
        """Return the attrs of `length` parameters, given as a list or as one attr for all."""
        given = self.kwargs.get("param_attr")
        attrs = list(given) if isinstance(given, (list, tuple)) else [given]
        if len(attrs) not in (1, length):
            raise ValueError(f"{self.layer_type}: got {len(attrs)} param_attrs, expected {length}")
        return [to_param_attr(attr) for attr in attrs * (length if len(attrs) == 1 else 1)]

    def set_variable_initializer(self, var: Variable, initializer: Any) -> Variable:
        """Initialize a persistent variable in the startup program."""
        startup = self.startup_program.global_block()
        var.persistable = True
        if not startup.has_var(var.name):
            initializer(startup.add_var(var.copy()), startup)
        return var


def make_plain(main: Program, startup: Program, name: str) -> None:
    """Convert a parameter stored as table rows to a single tensor."""
    for program in (main, startup):
        found = program.global_block().vars.get(name)
        if isinstance(found, Parameter) and found.is_table:
            found.is_table = False
            program.changed()


_TABLE = Path(__file__).parent / "argument_types.csv"
_TYPES: dict[str, Any] = {
    "None": type(None),
    "Variable": Variable,
    "bool": bool,
    "float": float,
    "int": int,
    "list": list,
    "ndarray": np.ndarray,
    "str": str,
    "tuple": tuple,
}

Rule = tuple[str, str, tuple[str, ...]]
"""Maps each argument to its kind of check and the allowed values.

variable: a Variable with one of the dtypes. elements: one such Variable, or a list of them. type: a
value of one of the types. dtype: one of the dtypes. With a `?`, other types and None are also
accepted.
"""


@cache
def _rules() -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    with open(_TABLE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rule = (row["argument"], row["kind"], tuple(row["allowed"].split()))
            found.setdefault(row["layer"], []).append(rule)
    return found


def check_arguments(layer: str, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument of a type that the layer does not accept.

    >>> check_arguments("transpose", {"perm": (0, 1)})
    Traceback (most recent call last):
    TypeError: perm must be of type list, got (0, 1)
    """
    for name, kind, allowed in _rules().get(layer, ()):
        if name not in arguments:
            continue
        value = arguments[name]
        if kind == "elements":
            for item in value if isinstance(value, (list, tuple)) else [value]:
                _check_variable(name, item, allowed)
        elif kind == "variable":
            _check_variable(name, value, allowed)
        elif kind == "variable?":
            if isinstance(value, Variable):
                _check_variable(name, value, allowed)
        elif kind.startswith("dtype"):
            if value is not None and dtype_name(value) not in allowed:
                raise TypeError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
        elif (value is not None or not kind.endswith("?")) and not isinstance(
            value, tuple(_TYPES[one] for one in allowed)
        ):
            raise TypeError(f"{name} must be of type {' or '.join(allowed)}, got {value!r}")


def _check_variable(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, Variable):
        raise TypeError(f"{name} must be a Variable in the program, got {value!r}")
    if allowed and value.dtype not in allowed and value.type != ARRAY:
        raise TypeError(f"{name} must have the dtype {' or '.join(allowed)}, got {value.dtype}")


def convert_dtype(dtype: Any) -> str:
    """Return the name of an element type.

    >>> convert_dtype(np.float32)
    'float32'
    """
    return dtype_name(dtype)


def check_type(
    input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = ""
) -> None:
    """Raise TypeError unless a layer's argument has one of these types."""
    if not isinstance(input, expected_type):
        raise TypeError(
            f"{op_name}: {input_name} must be of type {expected_type}, got {type(input)}. "
            f"{extra_message}"
        )


def check_dtype(
    input_dtype: Any,
    input_name: str,
    expected_dtype: str | Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError unless an element type is one of these."""
    allowed = [expected_dtype] if isinstance(expected_dtype, str) else expected_dtype
    if dtype_name(input_dtype) not in allowed:
        raise TypeError(
            f"{op_name}: {input_name} must have the dtype {' or '.join(allowed)}, got "
            f"{dtype_name(input_dtype)}. {extra_message}"
        )


def check_variable_and_dtype(
    input: Any,
    input_name: str,
    expected_dtype: str | Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError unless a layer's argument is a Variable with one of these element types."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)
