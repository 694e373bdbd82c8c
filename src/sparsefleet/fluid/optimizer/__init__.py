"""Fluid's optimizers."""

# ruff: noqa: F401, F403
from sparsefleet.fluid.optimizer import kinds
from sparsefleet.fluid.optimizer.averages import ExponentialMovingAverage, ModelAverage
from sparsefleet.fluid.optimizer.kinds import *
from sparsefleet.fluid.optimizer.optimizer import Optimizer
from sparsefleet.fluid.optimizer.wrappers import (
    GradientMergeOptimizer,
    LookaheadOptimizer,
    RecomputeOptimizer,
)
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.optimizer")

__all__ = sorted(
    [
        *kinds.__all__,
        "ExponentialMovingAverage",
        "GradientMergeOptimizer",
        "LookaheadOptimizer",
        "ModelAverage",
        "Optimizer",
        "RecomputeOptimizer",
    ]
)
