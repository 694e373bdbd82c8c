"""A parameter server for PyTorch on CPUs: embedding tables that outgrow one machine."""

from sparsefleet import errors, fleet, metrics, optim
from sparsefleet._lazy import __getattr__ as __getattr__
from sparsefleet.errors import SparseFleetError
from sparsefleet.store import (
    DenseSpec,
    LocalStore,
    PushResult,
    RemoteStore,
    RemoteStoreConfig,
    Store,
    TableSpec,
)

__version__ = "0.1.0"

__all__ = [
    "DenseSpec",
    "LocalStore",
    "Predictor",
    "PushResult",
    "RemoteStore",
    "RemoteStoreConfig",
    "SparseFleetError",
    "Store",
    "TableSpec",
    "Trainer",
    "TrainerConfig",
    "__version__",
    "batch",
    "data",
    "errors",
    "export",
    "fleet",
    "fluid",
    "metrics",
    "modes",
    "nn",
    "optim",
    "reader",
    "serve",
    "train",
]
