"""Collective training: ranks hold equal parameters and average gradients or parameters."""

from sparsefleet.collective.buckets import layer_by_module, layer_by_prefix, plan_buckets
from sparsefleet.collective.gradient_exchange import GradientExchange
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.mixed_precision import (
    LossScaler,
    autocast_for,
    half_dtype,
    keep_in_float32,
)
from sparsefleet.collective.module_preparation import (
    compile_module,
    prepare_module,
    recompute_submodules,
)
from sparsefleet.collective.reduction import Traffic, Transfer, gather_rows
from sparsefleet.collective.rendezvous import choose_device
from sparsefleet.collective.strategy import AmpConfig, CollectiveStrategy, LocalSgdConfig
from sparsefleet.collective.sync_batch_norm import (
    NormGroup,
    SyncBatchNorm,
    convert_batch_norms,
    normalize_together,
)
from sparsefleet.collective.training import CollectiveTraining
from sparsefleet.collective.world import World

__all__ = [
    "AmpConfig",
    "CollectiveStrategy",
    "CollectiveTraining",
    "GradientExchange",
    "LocalSgd",
    "LocalSgdConfig",
    "LossScaler",
    "NormGroup",
    "SyncBatchNorm",
    "Traffic",
    "Transfer",
    "World",
    "autocast_for",
    "choose_device",
    "compile_module",
    "convert_batch_norms",
    "gather_rows",
    "half_dtype",
    "keep_in_float32",
    "layer_by_module",
    "layer_by_prefix",
    "normalize_together",
    "plan_buckets",
    "prepare_module",
    "recompute_submodules",
]
