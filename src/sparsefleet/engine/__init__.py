"""The engine: the single training loop behind both the PyTorch and the Fluid API."""

from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.engine.events import Events
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.step import Step
from sparsefleet.engine.training import Training
from sparsefleet.engine.training_pass import LoopConfig
from sparsefleet.engine.workload import Batch, Outcome, Runner, Workload

__all__ = [
    "Batch",
    "CheckpointConfig",
    "DistributedModel",
    "Events",
    "LoopConfig",
    "Outcome",
    "Runner",
    "Step",
    "Training",
    "Workload",
]
