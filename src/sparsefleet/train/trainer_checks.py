"""What can be told to be wrong as soon as a Trainer is made."""

from __future__ import annotations

from torch import nn

from sparsefleet.errors import ConfigError

__all__ = ["check_trained"]


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
