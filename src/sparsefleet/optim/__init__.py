"""Row optimizers: how a table applies a gradient."""

from sparsefleet.store.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    DecayedAdagrad,
    Ftrl,
    Momentum,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
)

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "DecayedAdagrad",
    "Ftrl",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
    "SGD",
]
