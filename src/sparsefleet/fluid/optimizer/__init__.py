"""Optimizers of Fluid."""

from sparsefleet.fluid.optimizer.kinds import (
    SGD,
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
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.optimizer")

__all__ = [
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
    "Ftrl",
    "FtrlOptimizer",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "SGD",
    "SGDOptimizer",
]
