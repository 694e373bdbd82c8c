"""Row optimizers: how a table applies a gradient."""

from sparsefleet.store.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    DecayedAdagrad,
    FluidAdadelta,
    FluidRMSProp,
    Ftrl,
    Lamb,
    Lars,
    Momentum,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
)

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "DecayedAdagrad",
    "FluidAdadelta",
    "FluidRMSProp",
    "Ftrl",
    "Lamb",
    "Lars",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
    "SGD",
]
