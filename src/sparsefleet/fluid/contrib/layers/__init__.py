"""Layers that Fluid had on trial."""

from sparsefleet.fluid.contrib.layers.basic_rnn import basic_gru, basic_lstm
from sparsefleet.fluid.contrib.layers.fused import (
    fused_elemwise_activation,
    fused_embedding_seq_pool,
    partial_concat,
    partial_sum,
    shuffle_batch,
)
from sparsefleet.fluid.contrib.layers.metrics import ctr_metric_bundle
from sparsefleet.fluid.contrib.layers.sparse_embedding import sparse_embedding
from sparsefleet.fluid.contrib.layers.trees import tdm_child, tdm_sampler
from sparsefleet.fluid.layers.lookups import index_sample
from sparsefleet.fluid.layers.units import BasicGRUUnit, BasicLSTMUnit
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.layers")

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "basic_gru",
    "basic_lstm",
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "index_sample",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
    "sparse_embedding",
    "tdm_child",
    "tdm_sampler",
]
