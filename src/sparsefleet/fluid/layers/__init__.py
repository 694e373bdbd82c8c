"""The layers that a program is built from."""

# ruff: noqa: F401, F403
from sparsefleet.fluid.framework.variable import Variable
from sparsefleet.fluid.layers.by_module import add_modules as _add_modules
from sparsefleet.fluid.layers.by_module import public_names as _public_names
from sparsefleet.fluid.operators.activations import *
from sparsefleet.fluid.operators.algebra import *
from sparsefleet.fluid.operators.arrays import *
from sparsefleet.fluid.operators.beams import *
from sparsefleet.fluid.operators.boxes import *
from sparsefleet.fluid.operators.branches import *
from sparsefleet.fluid.operators.cells import *
from sparsefleet.fluid.operators.click_rates import *
from sparsefleet.fluid.operators.convolutions import *
from sparsefleet.fluid.operators.decoding import *
from sparsefleet.fluid.operators.deformable import *
from sparsefleet.fluid.operators.detection_losses import *
from sparsefleet.fluid.operators.detection_outputs import *
from sparsefleet.fluid.operators.detection_targets import *
from sparsefleet.fluid.operators.distributions import *
from sparsefleet.fluid.operators.elementwise import *
from sparsefleet.fluid.operators.embedding import *
from sparsefleet.fluid.operators.filling import *
from sparsefleet.fluid.operators.indexing import *
from sparsefleet.fluid.operators.inspection import *
from sparsefleet.fluid.operators.io import *
from sparsefleet.fluid.operators.labelling import *
from sparsefleet.fluid.operators.lookups import *
from sparsefleet.fluid.operators.losses import *
from sparsefleet.fluid.operators.lstm import *
from sparsefleet.fluid.operators.matrices import *
from sparsefleet.fluid.operators.metrics import *
from sparsefleet.fluid.operators.normalization import *
from sparsefleet.fluid.operators.patterns import *
from sparsefleet.fluid.operators.pools import *
from sparsefleet.fluid.operators.priors import *
from sparsefleet.fluid.operators.ranking import *
from sparsefleet.fluid.operators.recurrent import *
from sparsefleet.fluid.operators.reductions import *
from sparsefleet.fluid.operators.regions import *
from sparsefleet.fluid.operators.resizing import *
from sparsefleet.fluid.operators.rnn_blocks import *
from sparsefleet.fluid.operators.sampled_losses import *
from sparsefleet.fluid.operators.schedules import *
from sparsefleet.fluid.operators.schedules import _decay_step_counter
from sparsefleet.fluid.operators.sequence_edits import *
from sparsefleet.fluid.operators.sequences import *
from sparsefleet.fluid.operators.shaping import *
from sparsefleet.fluid.operators.suppression import *
from sparsefleet.fluid.paths import unknown_names as _unknown_names

__getattr__ = _unknown_names("fluid.layers")

__all__ = _public_names(globals())

_modules = _add_modules(__name__)
