"""Collective training: ranks with equal parameters, which average gradients or parameters."""

from sparsefleet.collective.buckets import layer_by_module, layer_by_prefix, plan_buckets
from sparsefleet.collective.compiled import compile_module
from sparsefleet.collective.device_choice import choose_device
from sparsefleet.collective.gradient_exchange import GradientExchange
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.loss_scaler import LossScaler
from sparsefleet.collective.mixed_precision import autocast_for, half_dtype, keep_in_float32
from sparsefleet.collective.module_preparation import prepare_module
from sparsefleet.collective.recompute import recompute_submodules
from sparsefleet.collective.row_gather import gather_rows
from sparsefleet.collective.strategy import AmpConfig, CollectiveStrategy, LocalSgdConfig
from sparsefleet.collective.sync_batch_norm import (
    NormGroup,
    SyncBatchNorm,
    convert_batch_norms,
    normalize_together,
)
from sparsefleet.collective.traffic import Traffic, Transfer
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
