"""Variables out of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Parameter, Variable
from sparsefleet.fluid.initializer import Initializer
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.sizes import Sizes, sizes_of
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = [
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "fill_constant",
    "fill_constant_batch_size_like",
    "gaussian_random",
    "ones",
    "ones_like",
    "uniform_random",
    "zeros",
    "zeros_like",
]


@layer
def fill_constant(
    shape: Sizes,
    dtype: Any,
    value: float | Variable,
    force_cpu: bool = False,
    out: Variable | None = None,
) -> Variable:
    """One number everywhere."""
    del force_cpu
    helper = LayerHelper("fill_constant")
    made = helper.new_variable(dtype, stop_gradient=True) if out is None else out
    inputs, attrs = sizes_of(helper, "shape", shape, "Shape")
    attrs["dtype"] = dtype_name(dtype)
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs["value"] = float(value)
    helper.append_op("fill_constant", inputs, {"Out": made}, attrs)
    made.stop_gradient = True
    return made


@layer
def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """One number everywhere; one size is that of `input`."""
    del force_cpu
    helper = LayerHelper("fill_constant_batch_size_like")
    attrs = {
        "shape": list(shape),
        "dtype": dtype_name(dtype),
        "value": float(value),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
    }
    inputs = {"Input": helper.check_input(input)}
    made = helper.add("fill_constant_batch_size_like", inputs, attrs)
    made.stop_gradient = True
    return made


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """1 everywhere."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """0 everywhere."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


@layer
def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """0 in the shape of x."""
    helper = LayerHelper("zeros_like")
    made = helper.new_variable() if out is None else out
    helper.append_op("fill_zeros_like", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """1 in the shape of x."""
    helper = LayerHelper("ones_like")
    made = helper.new_variable(stop_gradient=True) if out is None else out
    inputs = {"X": helper.check_input(x, "x")}
    helper.append_op("fill_any_like", inputs, {"Out": made}, {"value": 1.0})
    return made


def _random(type: str, shape: Sizes, dtype: Any, settings: dict[str, Any]) -> Variable:
    helper = LayerHelper(type)
    out = helper.new_variable(dtype, stop_gradient=True)
    inputs, attrs = sizes_of(helper, "shape", shape, "Shape")
    attrs |= {"dtype": dtype_name(dtype), **settings}
    helper.append_op(type, inputs, {"Out": out}, attrs)
    return out


@layer
def uniform_random(
    shape: Sizes, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Variable:
    """Evenly spread, drawn at each run."""
    return _random("uniform_random", shape, dtype, {"min": min, "max": max, "seed": seed})


@layer
def gaussian_random(
    shape: Sizes,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """Normally distributed, drawn at each run."""
    return _random("gaussian_random", shape, dtype, {"mean": mean, "std": std, "seed": seed})


@layer
def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter:
    """A parameter by itself."""
    helper = LayerHelper("create_parameter")
    known = to_param_attr(attr)
    if known is None:
        raise helper.refuse("attr=False is no parameter")
    if name is not None and known.name is None:
        known.name = name
    return helper.create_parameter(known, list(shape), dtype, is_bias, default_initializer)


@layer
def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """A variable that begins with a number, and is not trained."""
    del force_cpu, persistable  # the start-up program's value must outlive its run
    helper = LayerHelper("global_var")
    known = unique_name.generate("global_var") if name is None else name
    return helper.create_state(known, shape, dtype, float(value))


@layer
def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """A variable without a value, for an operator to write to."""
    helper = LayerHelper("create_tensor")
    known = unique_name.generate("create_tensor") if name is None else name
    return helper.main_program.current_block().create_var(
        known, dtype=dtype, persistable=persistable
    )
