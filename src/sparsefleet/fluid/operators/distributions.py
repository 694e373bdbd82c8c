"""Probability distributions as layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.activations import exp, log
from sparsefleet.fluid.operators.elementwise import elementwise_sub, less_than
from sparsefleet.fluid.operators.filling import gaussian_random, uniform_random
from sparsefleet.fluid.operators.matrices import diag
from sparsefleet.fluid.operators.patterns import (
    gaussian_random_batch_size_like,
    uniform_random_batch_size_like,
)
from sparsefleet.fluid.operators.reductions import reduce_max, reduce_prod, reduce_sum
from sparsefleet.fluid.operators.shaping import assign, cast, reshape

__all__ = ["Categorical", "Distribution", "MultivariateNormalDiag", "Normal", "Uniform"]


class Distribution:
    """Base class for all distributions."""

    def sample(self, shape: Sequence[int], seed: int = 0) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be sampled")

    def entropy(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def kl_divergence(self, other: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no divergence")

    def log_prob(self, value: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")


def _are_floats(*values: Any) -> bool:
    return all(isinstance(value, float) for value in values)


def _pair(first: Any, second: Any) -> tuple[Variable, Variable, bool]:
    """Return both parameters as variables of the same shape, and whether they were given as
    Variables.
    """
    for value in (first, second):
        if not isinstance(value, (float, list, np.ndarray, Variable)):
            raise TypeError(
                f"a parameter must be a float, a list, an array or a Variable, got {value!r}"
            )
    are_variables = isinstance(first, Variable), isinstance(second, Variable)
    if any(are_variables):
        if not all(are_variables):
            raise ValueError("either both parameters or neither must be Variables")
        return first, second, True
    arrays = [np.atleast_1d(np.asarray(value, "float32")) for value in (first, second)]
    wide = np.broadcast_arrays(*arrays)
    made = [assign(np.ascontiguousarray(array)) for array in wide]
    return made[0], made[1], False


class Uniform(Distribution):
    """A uniform distribution over [low, high)."""

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high, self._is_fed = _pair(low, high)
        self._is_number = _are_floats(low, high)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """Draw samples. Their shape is `shape` followed by the shape of the parameters."""
        _check_draw(shape, seed)
        sizes = list(shape) + list((self.low + self.high).shape)
        if self._is_fed:
            template = self.low + self.high
            like = _rows_like(template, shape)
            made = uniform_random_batch_size_like(
                like, like.shape, template.dtype, min=0.0, max=1.0, seed=seed
            )
            return reshape(made, sizes) * (self.high - self.low) + self.low
        made = uniform_random(sizes, "float32", min=0.0, max=1.0, seed=seed)
        scaled = made * (self.high - self.low) + self.low
        return reshape(scaled, list(shape)) if self._is_number else scaled

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at `value`."""
        above = cast(less_than(self.low, value), value.dtype)
        below = cast(less_than(value, self.high), value.dtype)
        return elementwise_sub(log(above * below), log(self.high - self.low))

    def entropy(self) -> Variable:
        return log(self.high - self.low)


class Normal(Distribution):
    """A normal distribution with mean loc and standard deviation scale."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale, self._is_fed = _pair(loc, scale)
        self._is_number = _are_floats(loc, scale)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """Draw samples. Their shape is `shape` followed by the shape of the parameters."""
        _check_draw(shape, seed)
        sizes = list(shape) + list((self.loc + self.scale).shape)
        if self._is_fed:
            template = self.loc + self.scale
            like = _rows_like(template, shape)
            made = gaussian_random_batch_size_like(
                like, like.shape, mean=0.0, std=1.0, seed=seed, dtype=template.dtype
            )
            return reshape(made, sizes) * self.scale + self.loc
        made = gaussian_random(sizes, mean=0.0, std=1.0, seed=seed, dtype="float32")
        scaled = made * self.scale + self.loc
        return reshape(scaled, list(shape)) if self._is_number else scaled

    def entropy(self) -> Variable:
        constant = 0.5 + 0.5 * math.log(2 * math.pi)
        return log(self.scale) + constant

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at `value`."""
        variance = self.scale * self.scale
        distance = value - self.loc
        parts = log(self.scale) + math.log(math.sqrt(2.0 * math.pi))
        return elementwise_sub(-1.0 * (distance * distance) / (2.0 * variance), parts)

    def kl_divergence(self, other: Normal) -> Variable:
        """Return the Kullback-Leibler divergence from the other distribution."""
        if not isinstance(other, Normal):
            raise TypeError(f"other must be a Normal, got {other!r}")
        ratio = self.scale / other.scale
        ratio = ratio * ratio
        shift = (self.loc - other.loc) / other.scale
        return 0.5 * (ratio + shift * shift - 1.0 - log(ratio))


class Categorical(Distribution):
    """A categorical distribution with logits along the last axis."""

    def __init__(self, logits: Any) -> None:
        if not isinstance(logits, (list, np.ndarray, Variable)):
            raise TypeError(f"logits must be a list, an array or a Variable, got {logits!r}")
        is_variable = isinstance(logits, Variable)
        self.logits = logits if is_variable else assign(np.asarray(logits, "float32"))

    def _normal(self) -> tuple[Variable, Variable, Variable]:
        shifted = self.logits - reduce_max(self.logits, dim=-1, keep_dim=True)
        powers = exp(shifted)
        return shifted, powers, reduce_sum(powers, dim=-1, keep_dim=True)

    def kl_divergence(self, other: Categorical) -> Variable:
        """Return the Kullback-Leibler divergence from the other distribution."""
        if not isinstance(other, Categorical):
            raise TypeError(f"other must be a Categorical, got {other!r}")
        shifted, powers, total = self._normal()
        theirs, _, their_total = other._normal()
        gap = shifted - log(total) - theirs + log(their_total)
        return reduce_sum(powers / total * gap, dim=-1, keep_dim=True)

    def entropy(self) -> Variable:
        shifted, powers, total = self._normal()
        return -1.0 * reduce_sum(powers / total * (shifted - log(total)), dim=-1, keep_dim=True)


class MultivariateNormalDiag(Distribution):
    """A normal distribution over vectors; scale is a matrix with standard deviations on the
    diagonal.
    """

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _variable(loc), _variable(scale)

    def _diagonal(self, value: Variable) -> Variable:
        """Return the matrix with all elements off the diagonal replaced by 1."""
        size = value.shape[0]
        ones = assign(np.ones((size, size), "float32"))
        return value + (ones - diag(assign(np.ones(size, "float32"))))

    def _det(self, value: Variable) -> Variable:
        return reduce_prod(self._diagonal(value))

    def _inv(self, value: Variable) -> Variable:
        size = value.shape[0]
        eye = diag(assign(np.ones(size, "float32")))
        return eye / self._diagonal(value)

    def entropy(self) -> Variable:
        constant = self.scale.shape[0] * (1.0 + math.log(2 * math.pi))
        return 0.5 * (log(self._det(self.scale)) + constant)

    def kl_divergence(self, other: MultivariateNormalDiag) -> Variable:
        """Return the Kullback-Leibler divergence from the other distribution."""
        if not isinstance(other, MultivariateNormalDiag):
            raise TypeError(f"other must be a MultivariateNormalDiag, got {other!r}")
        from sparsefleet.fluid.operators.matrices import matmul

        inverse = self._inv(other.scale)
        trace = reduce_sum(inverse * self.scale)
        gap = other.loc - self.loc
        squared = matmul(matmul(gap, inverse), gap)
        lengths = log(self._det(other.scale)) - log(self._det(self.scale))
        return 0.5 * (trace + squared - float(self.scale.shape[0]) + lengths)


def _variable(value: Any) -> Variable:
    if isinstance(value, Variable):
        return value
    if not isinstance(value, (float, list, np.ndarray)):
        raise TypeError(f"expected a float, a list, an array or a Variable, got {value!r}")
    return assign(np.atleast_1d(np.asarray(value, "float32")))


def _check_draw(shape: Any, seed: Any) -> None:
    """Raise TypeError unless a shape is a list and a seed an int."""
    if not isinstance(shape, (list, tuple)):
        raise TypeError(f"shape must be a list, got {shape!r}")
    if not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r}")


def _rows_like(template: Variable, shape: Sequence[int]) -> Variable:
    """Return a variable with the batch size of the template followed by `shape`."""
    from sparsefleet.fluid.operators.filling import fill_constant_batch_size_like

    sizes = list(template.shape) + list(shape)
    return fill_constant_batch_size_like(template, sizes, template.dtype, 0.0)
