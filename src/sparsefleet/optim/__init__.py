"""Row optimizers: what a table does with a gradient."""

from sparsefleet.store.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Adamax,
    DecayedAdagrad,
    Ftrl,
    Momentum,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
)

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adamax",
    "DecayedAdagrad",
    "Ftrl",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
]
