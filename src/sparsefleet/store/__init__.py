"""Stores that hold tables, and the specs that describe tables."""

from sparsefleet.store.connection import RoundMember
from sparsefleet.store.initializers import (
    Constant,
    Initializer,
    Normal,
    TruncatedNormal,
    Uniform,
    Xavier,
)
from sparsefleet.store.local_store import LocalStore
from sparsefleet.store.remote_store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.rows import PushResult, Rows
from sparsefleet.store.store import Store
from sparsefleet.store.table_spec import (
    AdmitAlways,
    AdmitByCount,
    AdmitByProbability,
    DenseSpec,
    Evict,
    NonFinitePolicy,
    RowDtype,
    TableSpec,
)

__all__ = [
    "AdmitAlways",
    "AdmitByCount",
    "AdmitByProbability",
    "Constant",
    "DenseSpec",
    "Evict",
    "Initializer",
    "LocalStore",
    "NonFinitePolicy",
    "Normal",
    "PushResult",
    "RemoteStore",
    "RemoteStoreConfig",
    "RoundMember",
    "RowDtype",
    "Rows",
    "Store",
    "TableSpec",
    "TruncatedNormal",
    "Uniform",
    "Xavier",
]
