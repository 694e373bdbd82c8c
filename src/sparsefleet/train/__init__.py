"""Training: the Trainer, its threads, evaluation and what a person sees of it."""

from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.history import Epoch, History
from sparsefleet.train.time_shares import TimeShares
from sparsefleet.train.trainer import Trainer
from sparsefleet.train.trainer_config import TrainerConfig
from sparsefleet.updates.publish_config import PublishConfig

__all__ = [
    "CheckpointConfig",
    "Epoch",
    "History",
    "PublishConfig",
    "TimeShares",
    "Trainer",
    "TrainerConfig",
]
