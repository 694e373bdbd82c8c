"""Fluid's optimizers."""

from sparsefleet.fluid.optimizer.averages import ExponentialMovingAverage, ModelAverage
from sparsefleet.fluid.optimizer.kinds import (
    SGD,
    Adadelta,
    AdadeltaOptimizer,
    Adagrad,
    AdagradOptimizer,
    Adam,
    Adamax,
    AdamaxOptimizer,
    AdamOptimizer,
    DecayedAdagrad,
    DecayedAdagradOptimizer,
    DGCMomentum,
    DGCMomentumOptimizer,
    Ftrl,
    FtrlOptimizer,
    Lamb,
    LambOptimizer,
    LarsMomentum,
    LarsMomentumOptimizer,
    Momentum,
    MomentumOptimizer,
    RMSProp,
    RMSPropOptimizer,
    SGDOptimizer,
)
from sparsefleet.fluid.optimizer.optimizer import Optimizer
from sparsefleet.fluid.optimizer.wrappers import (
    GradientMergeOptimizer,
    LookaheadOptimizer,
    RecomputeOptimizer,
)
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.optimizer")

__all__ = [
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DGCMomentum",
    "DGCMomentumOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "GradientMergeOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGD",
    "SGDOptimizer",
]
