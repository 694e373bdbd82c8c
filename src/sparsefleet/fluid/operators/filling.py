"""Operators that create variables: constants, random values, parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.fluid.framework import Parameter, Variable, unique_name
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.initializer import Initializer
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sizes import Sizes, open_sizes, run_sizes, sizes_of

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


Tensor = torch.Tensor


def _given_shape(whole: Shape | None, *others: Any, **settings: Any) -> list[Shape]:
    del others
    return [tuple(open_sizes(settings["shape"], whole, settings.get("shape_places", ())))]


@op(
    "fill_constant",
    "ShapeTensor? ShapeTensorList* ValueTensor?",
    lod="none",
    infer=_given_shape,
)
def fill_constant_op(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    value_tensor: Tensor | None,
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    value: float = 0.0,
    dtype: str = "float32",
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    kind = getattr(torch, dtype)
    if value_tensor is not None:
        return value_tensor.reshape(()).to(kind).expand(sizes).clone()
    return torch.full(sizes, value, dtype=kind)


@op("fill_constant_batch_size_like", "Input", lod="function")
def fill_constant_batch_size_like_op(
    like: Tensor,
    *,
    shape: Sequence[int],
    value: float,
    dtype: str = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    lods: list[Any] | None = None,
) -> Any:
    sizes = sizes_like(like, lods, shape, input_dim_idx, output_dim_idx)
    made = torch.full(sizes, value, dtype=getattr(torch, dtype), device=like.device)
    return made if lods is None else (made, ())


def sizes_like(
    like: Tensor,
    lods: list[Any] | None,
    shape: Sequence[int],
    input_dim_idx: int,
    output_dim_idx: int,
) -> list[int]:
    """Return the shape, with one size taken from `like`.

    If `like` has sequences, that size is the number of sequences.
    """
    sizes = list(shape)
    by_sequence = input_dim_idx == 0 and lods and lods[0]
    sizes[output_dim_idx] = len(lods[0][-1]) - 1 if by_sequence else like.shape[input_dim_idx]  # type: ignore[index]
    return sizes


@op("fill_zeros_like", "X")
def fill_zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


@op("assign_value", "", lod="none")
def assign_value(
    *, shape: Sequence[int], values: Sequence[Any], dtype: str = "float32", device: str = "cpu"
) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype), device=device).reshape(tuple(shape))


def _is_seeded(made: Tensor, seed: int) -> bool:
    """Return whether to draw the same random numbers as Fluid 1.8.5 does on a CPU.

    This also applies when running on a GPU.
    """
    return bool(seed) and not made.is_meta and made.dtype in (torch.float32, torch.float64)


@op("uniform_random", "ShapeTensor? ShapeTensorList*", lod="none", infer=_given_shape)
def uniform_random_op(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    min: float = -1.0,
    max: float = 1.0,
    diag_num: int = 0,
    diag_step: int = 0,
    diag_val: float = 1.0,
    dtype: str = "float32",
    seed: int = 0,
    program_seed: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    made = torch.empty(sizes, dtype=getattr(torch, dtype))
    if _is_seeded(made, seed or program_seed):
        seeded_uniform(made, seed or program_seed, min, max)
    else:
        made.uniform_(min, max, generator=generator)
    made.view(-1)[: diag_num * (diag_step + 1) : diag_step + 1] = diag_val
    return made


@op("gaussian_random", "ShapeTensor? ShapeTensorList*", lod="none", infer=_given_shape)
def gaussian_random_op(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    seed: int = 0,
    program_seed: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    made = torch.empty(sizes, dtype=getattr(torch, dtype))
    if _is_seeded(made, seed or program_seed):
        return seeded_normal(made, seed or program_seed, mean, std)
    return made.normal_(mean, std, generator=generator)


@op("truncated_gaussian_random", "", lod="none")
def truncated_gaussian_random(
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    program_seed: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw from a normal distribution, truncated at two standard deviations."""
    made = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
    if made.is_meta or std == 0.0:
        return made if made.is_meta else made.fill_(mean)
    if _is_seeded(made, seed or program_seed):
        return seeded_truncated_normal(made, seed or program_seed, mean, std)
    return torch.nn.init.trunc_normal_(
        made, mean, std, mean - 2 * std, mean + 2 * std, generator=generator
    )


@layer
def fill_constant(
    shape: Sizes,
    dtype: Any,
    value: float | Variable,
    force_cpu: bool = False,
    out: Variable | None = None,
) -> Variable:
    """Return a variable of this shape, filled with one number."""
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
    """Return a variable filled with one number; one size of its shape is taken from `input`."""
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
    """Return a variable of this shape, filled with 1."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a variable of this shape, filled with 0."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


@layer
def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return zeros in the shape of x."""
    helper = LayerHelper("zeros_like")
    made = helper.new_variable() if out is None else out
    helper.append_op("fill_zeros_like", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return ones in the shape of x."""
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
    """Draw new values from a uniform distribution in each run."""
    return _random("uniform_random", shape, dtype, {"min": min, "max": max, "seed": seed})


@layer
def gaussian_random(
    shape: Sizes,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """Draw new values from a normal distribution in each run."""
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
    """Create a parameter."""
    helper = LayerHelper("create_parameter")
    known = to_param_attr(attr)
    if known is None:
        raise helper.refuse("attr must not be False")
    if default_initializer is not None and not callable(default_initializer):
        raise TypeError(f"default_initializer must be an initializer, got {default_initializer!r}")
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
    """Create a non-trainable variable with an initial value."""
    del force_cpu, persistable  # the value set by the startup program must outlive that run
    helper = LayerHelper("global_var")
    known = unique_name.generate("global_var") if name is None else name
    return helper.create_state(known, shape, dtype, float(value))


@layer
def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Create a variable without a value, for an operator to write to."""
    helper = LayerHelper("create_tensor")
    known = unique_name.generate("create_tensor") if name is None else name
    return helper.main_program.current_block().create_var(
        known, dtype=dtype, persistable=persistable
    )


# The random numbers that Fluid 1.8.5 draws on a CPU with a fixed seed: C++'s `minstd_rand` through
# libstdc++'s distributions. A seeded program therefore starts with the same parameters as in Fluid
# 1.8.5, and an operator with a seed draws the same numbers in every run.

_MULTIPLIER, _MODULUS = 48271, 2**31 - 1
_SPAN = _MODULUS - 1  # numbers 1 .. _SPAN
_BLOCK = 1 << 16
_KINDS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}

Floats = NDArray[Any]


def seeded_uniform(made: torch.Tensor, seed: int, low: float, high: float) -> torch.Tensor:
    """Fill a float32 or float64 tensor with numbers from low..high.

    >>> seeded_uniform(torch.empty(2), 1, 0.0, 1e6).int().tolist()
    [22, 85032]
    """
    kind = _KINDS[made.dtype]
    numbers = _canonical(seed, made.numel(), kind) * (kind(high) - kind(low)) + kind(low)
    return made.copy_(torch.from_numpy(numbers.reshape(made.shape)))


def seeded_normal(made: torch.Tensor, seed: int, mean: float, std: float) -> torch.Tensor:
    """Fill a float32 or float64 tensor from a normal distribution, by the polar method."""
    kind = _KINDS[made.dtype]
    found: list[Floats] = []
    missing, stream = made.numel(), _blocks(seed, kind)
    while missing > 0:
        pairs = (kind(2) * next(stream) - kind(1)).reshape(-1, 2)
        squares = (pairs * pairs).sum(axis=1)
        kept = (squares <= 1) & (squares != 0)
        pairs, squares = pairs[kept], squares[kept]
        factors = np.sqrt(-2 * np.log(squares) / squares)
        found.append((pairs[:, ::-1] * factors[:, None]).reshape(-1)[:missing])
        missing -= len(found[-1])
    numbers = np.concatenate([*found, np.empty(0, kind)]) * kind(std) + kind(mean)
    return made.copy_(torch.from_numpy(numbers.reshape(made.shape)))


def seeded_truncated_normal(made: torch.Tensor, seed: int, mean: float, std: float) -> torch.Tensor:
    """Fill a tensor from a normal distribution, truncated at two standard deviations."""
    seeded_uniform(made, seed, float(np.finfo(np.float32).tiny), 1.0)
    below = (1 + math.erf(-math.sqrt(2))) / 2
    places = below + (1 - 2 * below) * made.double()
    return made.copy_(torch.erfinv(2 * places - 1) * (math.sqrt(2) * std) + mean)


def _canonical(seed: int, count: int, kind: Any) -> Floats:
    """Return `count` random values in 0..1."""
    found: list[Floats] = []
    stream = _blocks(seed, kind)
    while count > 0:
        found.append(next(stream)[:count])
        count -= len(found[-1])
    return np.concatenate([*found, np.empty(0, kind)])


def _blocks(seed: int, kind: Any) -> Iterator[Floats]:
    """Yield blocks of random numbers in 0..1 indefinitely.

    A float64 uses two numbers from the generator.
    """
    powers = np.ones(_BLOCK, np.uint64)
    for place in range(_BLOCK.bit_length() - 1):  # powers[i] = multiplier ** (i + 1)
        size = 1 << place
        factor = pow(_MULTIPLIER, size, _MODULUS)
        powers[size : 2 * size] = powers[:size] * np.uint64(factor) % np.uint64(_MODULUS)
    powers = powers * np.uint64(_MULTIPLIER) % np.uint64(_MODULUS)
    state = (seed % 2**32) % _MODULUS or 1
    while True:
        drawn = powers * np.uint64(state) % np.uint64(_MODULUS)
        state = int(drawn[-1])
        whole = (drawn - np.uint64(1)).astype(kind)
        if kind is np.float32:
            yield whole / kind(_SPAN)
        else:
            yield (whole[::2] + whole[1::2] * _SPAN) / (float(_SPAN) * _SPAN)
