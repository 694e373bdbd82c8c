"""Layers of a program: all names of the modules here."""

# ruff: noqa: F401, F403
from sparsefleet.fluid.layers import (
    collective,
    control_flow,
    device,
    loss,
    metric_op,
    nn,
    ops,
    sequence_lod,
    tensor,
)
from sparsefleet.fluid.layers.activations import *
from sparsefleet.fluid.layers.algebra import *
from sparsefleet.fluid.layers.arrays import *
from sparsefleet.fluid.layers.beams import *
from sparsefleet.fluid.layers.branches import *
from sparsefleet.fluid.layers.by_module import public_names as _public_names
from sparsefleet.fluid.layers.cells import *
from sparsefleet.fluid.layers.click_rates import *
from sparsefleet.fluid.layers.comparisons import *
from sparsefleet.fluid.layers.convolutions import *
from sparsefleet.fluid.layers.decode_helpers import *
from sparsefleet.fluid.layers.decoding import *
from sparsefleet.fluid.layers.device import get_places
from sparsefleet.fluid.layers.dynamic_rnn import *
from sparsefleet.fluid.layers.elementwise import *
from sparsefleet.fluid.layers.embedding import *
from sparsefleet.fluid.layers.filling import *
from sparsefleet.fluid.layers.if_else import *
from sparsefleet.fluid.layers.indexing import *
from sparsefleet.fluid.layers.inspection import *
from sparsefleet.fluid.layers.io import *
from sparsefleet.fluid.layers.labelling import *
from sparsefleet.fluid.layers.learning_rate_scheduler import *
from sparsefleet.fluid.layers.learning_rate_scheduler import _decay_step_counter
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
from sparsefleet.fluid.layers.transcription import *
from sparsefleet.fluid.unknown_names import unknown_names as _unknown_names
from sparsefleet.fluid.variable import Variable

__getattr__ = _unknown_names("fluid.layers")

__all__ = _public_names(globals())
