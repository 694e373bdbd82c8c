"""Initializers, which add operators to the startup program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefleet.fluid.paths import unknown_names

if TYPE_CHECKING:
    from sparsefleet.fluid.framework import Block, Variable

__getattr__ = unknown_names("fluid.initializer")

__all__ = [
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Initializer",
    "MSRA",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArray",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
    "force_init_on_cpu",
    "init_on_cpu",
]


@contextmanager
def init_on_cpu() -> Iterator[None]:
    """Do nothing, since parameters are always initialized on the CPU."""
    yield


def force_init_on_cpu() -> bool:
    """Return False, since `init_on_cpu` has no effect."""
    return False


class Initializer:
    """Base class for all initializers."""

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        """Return the type and attrs of the operator that initializes the variable."""
        raise TypeError(f"{type(self).__name__} does not define how to fill {variable!r}")

    def __call__(self, variable: Variable, block: Block) -> None:
        """Add the operator to the block of the startup program."""
        type, attrs = self.fill(variable)
        common = {"shape": list(variable.shape), "dtype": variable.dtype}
        if "seed" in attrs and block.program.random_seed:
            attrs["program_seed"] = block.program.random_seed
        block.append_op(type, {}, {"Out": variable}, {**common, **attrs})


class ConstantInitializer(Initializer):
    """Sets every element to one value."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        del force_cpu
        self.value = float(value)

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        del variable
        return "fill_constant", {"value": self.value}


class UniformInitializer(Initializer):
    """Draws from the uniform distribution over low..high.

    diag_num: number of elements to set to diag_val, spaced diag_step apart.
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        *,
        diag_val: float = 1.0,
    ) -> None:
        if low > high:
            raise ValueError(f"Uniform: low {low} must not exceed high {high}")
        self.low, self.high, self.seed = float(low), float(high), seed
        self.diag_num, self.diag_step, self.diag_val = diag_num, diag_step, float(diag_val)

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        del variable
        attrs = {"min": self.low, "max": self.high, "seed": self.seed}
        if self.diag_num:
            attrs |= {"diag_num": self.diag_num, "diag_step": self.diag_step}
            attrs["diag_val"] = self.diag_val
        return "uniform_random", attrs


class NormalInitializer(Initializer):
    """Draws from a normal distribution."""

    type = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        self.mean, self.std, self.seed = float(loc), float(scale), seed

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        del variable
        return self.type, {"mean": self.mean, "std": self.std, "seed": self.seed}


class TruncatedNormalInitializer(NormalInitializer):
    """Draws from a normal distribution, truncated at two standard deviations."""

    type = "truncated_gaussian_random"


class XavierInitializer(Initializer):
    """Implements Glorot and Bengio (2010), which gives wider layers smaller values.

    fan_in, fan_out: if None, computed from the parameter's shape.
    """

    def __init__(
        self,
        uniform: bool = True,
        fan_in: float | None = None,
        fan_out: float | None = None,
        seed: int = 0,
    ) -> None:
        self.uniform, self.fan_in, self.fan_out, self.seed = uniform, fan_in, fan_out, seed

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        found_in, found_out = _fans(variable.shape)
        fan_in = found_in if self.fan_in is None else self.fan_in
        fan_out = found_out if self.fan_out is None else self.fan_out
        if self.uniform:
            return UniformInitializer(*_span(6.0 / (fan_in + fan_out)), self.seed).fill(variable)
        return NormalInitializer(0.0, math.sqrt(2.0 / (fan_in + fan_out)), self.seed).fill(variable)


class MSRAInitializer(Initializer):
    """Implements He et al. (2015), for layers with relu."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        self.uniform, self.fan_in, self.seed = uniform, fan_in, seed

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        fan_in = _fans(variable.shape)[0] if self.fan_in is None else self.fan_in
        if self.uniform:
            return UniformInitializer(*_span(6.0 / fan_in), self.seed).fill(variable)
        return NormalInitializer(0.0, math.sqrt(2.0 / fan_in), self.seed).fill(variable)


class NumpyArrayInitializer(Initializer):
    """Copies the values of an array with the same number of elements, in order."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        if self.value.size != math.prod(variable.shape):
            raise ValueError(
                f"NumpyArrayInitializer: got an array of shape {self.value.shape} for parameter "
                f"'{variable.name}', expected shape {variable.shape}"
            )
        return "assign_value", {"values": self.value.reshape(-1).tolist()}


class BilinearInitializer(Initializer):
    """Sets the weights [C, 1, H, W] of a transposed convolution that upsamples images."""

    def fill(self, variable: Variable) -> tuple[str, dict[str, Any]]:
        if len(variable.shape) != 4 or variable.shape[2] != variable.shape[3]:
            raise ValueError(f"Bilinear needs a shape [C, 1, H, H], got {variable.shape}")
        size = variable.shape[3]
        factor = math.ceil(size / 2.0)
        center = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        line = 1 - np.abs(np.arange(size) / factor - center)
        plane = np.broadcast_to(np.outer(line, line), variable.shape)
        return "assign_value", {"values": plane.reshape(-1).tolist()}


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        return shape[0], shape[0]
    if len(shape) == 2:
        return shape[0], shape[1]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _span(square: float) -> tuple[float, float]:
    return -math.sqrt(square), math.sqrt(square)


Bilinear = BilinearInitializer
Constant = ConstantInitializer
MSRA = MSRAInitializer
Normal = NormalInitializer
NumpyArray = NumpyArrayInitializer
TruncatedNormal = TruncatedNormalInitializer
Uniform = UniformInitializer
Xavier = XavierInitializer
