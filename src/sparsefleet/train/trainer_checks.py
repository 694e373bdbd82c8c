"""What can be told to be wrong as soon as a Trainer is made."""

from __future__ import annotations

from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.modes import CollectiveConfig, ModeConfig
from sparsefleet.train.trainer_config import TrainerConfig

__all__ = ["check_collective", "check_trained"]


def check_trained(model: object, loss: object, threads: object) -> None:
    """Raises ConfigError that names the argument."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(loss, type):
        raise ConfigError(f"loss is the class {loss.__name__}: give an instance, {loss.__name__}()")
    if loss is not None and not callable(loss):
        raise ConfigError(
            f"loss must be a function of (output, labels), or None if the model's output is the "
            f"loss; got a {type(loss).__name__}"
        )
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ConfigError(f"threads must be an int >= 1, got {threads!r}")


def check_collective(mode: ModeConfig | None, config: TrainerConfig) -> None:
    """Refuses what workers that step alike cannot do."""
    if not isinstance(mode, CollectiveConfig):
        return
    if mode.strategy.sync_batch_norm and config.non_finite_loss == "skip":
        raise ConfigError(
            "sync_batch_norm normalises a batch with those of all workers, so that one worker "
            "cannot leave its own out: TrainerConfig.non_finite_loss must be 'raise', got 'skip'"
        )
