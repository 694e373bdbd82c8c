"""The PyTorch API: the Trainer, its settings, evaluation, progress and callbacks."""

from sparsefleet.engine.clock import TimeShares
from sparsefleet.engine.profiling import ProfileConfig
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.serving.updates.publisher import PublishConfig
from sparsefleet.train.callbacks import (
    Callback,
    EarlyStopping,
    JsonLinesLogger,
    LearningRateLogger,
    SaveBest,
)
from sparsefleet.train.history import Epoch, History
from sparsefleet.train.loggers import CsvLogger, MlflowLogger, WandbLogger
from sparsefleet.train.slot_report import Slice, SlotReport
from sparsefleet.train.trainer import Trainer
from sparsefleet.train.trainer_config import TrainerConfig

__all__ = [
    "Callback",
    "CheckpointConfig",
    "CsvLogger",
    "EarlyStopping",
    "Epoch",
    "History",
    "JsonLinesLogger",
    "LearningRateLogger",
    "MlflowLogger",
    "ProfileConfig",
    "PublishConfig",
    "SaveBest",
    "Slice",
    "SlotReport",
    "TimeShares",
    "Trainer",
    "TrainerConfig",
    "WandbLogger",
]
