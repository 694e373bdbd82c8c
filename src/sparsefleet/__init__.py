"""A parameter server for PyTorch on CPUs: embedding tables that outgrow one machine.

`Trainer` trains a torch module whose `nn.SparseEmbedding` tables live on servers; `Predictor`
serves what it exported. `fleet` is for custom training loops; `fluid` runs Fluid programs.
"""

from typing import TYPE_CHECKING

from sparsefleet import fleet, metrics, optim
from sparsefleet._lazy import LazyFunction as _LazyFunction
from sparsefleet._lazy import lazy_names as _lazy_names
from sparsefleet._lazy import listing as _listing
from sparsefleet.errors import SparseFleetError
from sparsefleet.store import LocalStore, RemoteStore, TableSpec

if TYPE_CHECKING:
    from sparsefleet import data, fluid, modes, nn, zoo
    from sparsefleet.serving import Predictor
    from sparsefleet.train import CheckpointConfig, Trainer, TrainerConfig

__version__ = "0.1.0"

__all__ = [
    "CheckpointConfig",
    "LocalStore",
    "Predictor",
    "RemoteStore",
    "SparseFleetError",
    "TableSpec",
    "Trainer",
    "TrainerConfig",
    "__version__",
    "data",
    "fleet",
    "fluid",
    "metrics",
    "modes",
    "nn",
    "optim",
    "zoo",
]

# torch and pyarrow take seconds to load, so names that need them are loaded on first use.
__getattr__ = _lazy_names(
    __name__,
    {
        "CheckpointConfig": "sparsefleet.train",
        "Predictor": "sparsefleet.serving",
        "Trainer": "sparsefleet.train",
        "TrainerConfig": "sparsefleet.train",
        "data": "sparsefleet.data",
        "fluid": "sparsefleet.fluid",
        "modes": "sparsefleet.modes",
        "nn": "sparsefleet.nn",
        "serving": "sparsefleet.serving",
        "torchrec_like": "sparsefleet.torchrec_like",
        "train": "sparsefleet.train",
        "zoo": "sparsefleet.zoo",
    },
)
__dir__ = _listing(__all__)

# The fleet may not import the engine: it is a higher layer and needs torch, which servers do not
# load.
fleet.Fleet.binder = _LazyFunction("sparsefleet.engine.binding", "bind_model")
