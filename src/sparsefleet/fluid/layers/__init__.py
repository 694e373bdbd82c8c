"""Layers of a program: all names of the modules here."""

# ruff: noqa: F403
from sparsefleet.fluid.layers import (
    activations as _activations,
    algebra as _algebra,
    arrays as _arrays,
    branches as _branches,
    cells as _cells,
    click_rates as _click_rates,
    collective as collective,
    comparisons as _comparisons,
    control_flow as control_flow,
    convolutions as _convolutions,
    decode_helpers as _decode_helpers,
    decoding as _decoding,
    device as device,
    dynamic_rnn as _dynamic_rnn,
    elementwise as _elementwise,
    embedding as _embedding,
    filling as _filling,
    if_else as _if_else,
    indexing as _indexing,
    inspection as _inspection,
    io as _io,
    learning_rate_scheduler as _learning_rate_scheduler,
    lookups as _lookups,
    loops as _loops,
    loss as loss,
    losses as _losses,
    lstm as _lstm,
    matrices as _matrices,
    metric_op as metric_op,
    metrics as _metrics,
    nn as nn,
    normalization as _normalization,
    ops as ops,
    parallel_do as _parallel_do,
    patterns as _patterns,
    pools as _pools,
    products as _products,
    ranking as _ranking,
    rearranging as _rearranging,
    rectifiers as _rectifiers,
    recurrent as _recurrent,
    reductions as _reductions,
    resizing as _resizing,
    rnn as _rnn,
    sampled_losses as _sampled_losses,
    sequence_edits as _sequence_edits,
    sequence_lod as sequence_lod,
    sequences as _sequences,
    shaping as _shaping,
    slicing as _slicing,
    static_rnn as _static_rnn,
    tensor as tensor,
)
from sparsefleet.fluid.layers.activations import *
from sparsefleet.fluid.layers.algebra import *
from sparsefleet.fluid.layers.arrays import *
from sparsefleet.fluid.layers.branches import *
from sparsefleet.fluid.layers.cells import *
from sparsefleet.fluid.layers.click_rates import *
from sparsefleet.fluid.layers.comparisons import *
from sparsefleet.fluid.layers.convolutions import *
from sparsefleet.fluid.layers.decode_helpers import *
from sparsefleet.fluid.layers.decoding import *
from sparsefleet.fluid.layers.dynamic_rnn import *
from sparsefleet.fluid.layers.elementwise import *
from sparsefleet.fluid.layers.embedding import *
from sparsefleet.fluid.layers.filling import *
from sparsefleet.fluid.layers.if_else import *
from sparsefleet.fluid.layers.indexing import *
from sparsefleet.fluid.layers.inspection import *
from sparsefleet.fluid.layers.io import *
from sparsefleet.fluid.layers.learning_rate_scheduler import *
from sparsefleet.fluid.layers.lookups import *
from sparsefleet.fluid.layers.loops import *
from sparsefleet.fluid.layers.losses import *
from sparsefleet.fluid.layers.lstm import *
from sparsefleet.fluid.layers.matrices import *
from sparsefleet.fluid.layers.metrics import *
from sparsefleet.fluid.layers.normalization import *
from sparsefleet.fluid.layers.parallel_do import *
from sparsefleet.fluid.layers.patterns import *
from sparsefleet.fluid.layers.pools import *
from sparsefleet.fluid.layers.products import *
from sparsefleet.fluid.layers.ranking import *
from sparsefleet.fluid.layers.rearranging import *
from sparsefleet.fluid.layers.rectifiers import *
from sparsefleet.fluid.layers.recurrent import *
from sparsefleet.fluid.layers.reductions import *
from sparsefleet.fluid.layers.resizing import *
from sparsefleet.fluid.layers.rnn import *
from sparsefleet.fluid.layers.sampled_losses import *
from sparsefleet.fluid.layers.sequence_edits import *
from sparsefleet.fluid.layers.sequences import *
from sparsefleet.fluid.layers.shaping import *
from sparsefleet.fluid.layers.slicing import *
from sparsefleet.fluid.layers.static_rnn import *
from sparsefleet.fluid.layers.device import get_places as get_places
from sparsefleet.fluid.layers.learning_rate_scheduler import (
    _decay_step_counter as _decay_step_counter,
)
from sparsefleet.fluid.unknown_names import unknown_names
from sparsefleet.fluid.variable import Variable as Variable

__getattr__ = unknown_names("fluid.layers")

__all__ = sorted(
    {
        "Variable",
        *_activations.__all__,
        *_algebra.__all__,
        *_arrays.__all__,
        *_branches.__all__,
        *_cells.__all__,
        *_click_rates.__all__,
        *_comparisons.__all__,
        *_convolutions.__all__,
        *_decode_helpers.__all__,
        *_decoding.__all__,
        *_dynamic_rnn.__all__,
        *_elementwise.__all__,
        *_embedding.__all__,
        *_filling.__all__,
        *_if_else.__all__,
        *_indexing.__all__,
        *_inspection.__all__,
        *_io.__all__,
        *_learning_rate_scheduler.__all__,
        *_lookups.__all__,
        *_loops.__all__,
        *_losses.__all__,
        *_lstm.__all__,
        *_matrices.__all__,
        *_metrics.__all__,
        *_normalization.__all__,
        *_parallel_do.__all__,
        *_patterns.__all__,
        *_pools.__all__,
        *_products.__all__,
        *_ranking.__all__,
        *_rearranging.__all__,
        *_rectifiers.__all__,
        *_recurrent.__all__,
        *_reductions.__all__,
        *_resizing.__all__,
        *_rnn.__all__,
        *_sampled_losses.__all__,
        *_sequence_edits.__all__,
        *_sequences.__all__,
        *_shaping.__all__,
        *_slicing.__all__,
        *_static_rnn.__all__,
    }
)
