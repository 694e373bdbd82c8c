"""The settings of a Trainer that most people leave alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive

__all__ = ["TrainerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """How a Trainer runs its threads, what it does about bad losses, and what it shows.

    >>> TrainerConfig(non_finite_loss="skip", quiet=True).log_interval_s
    5.0
    """

    torch_threads: int = 1
    """Threads torch uses inside each training thread. More than 1 pays only where a thread has
    several cores to itself: with `threads=1` on a large machine."""

    non_finite_loss: Literal["raise", "skip"] = "raise"
    """What to do about a loss that is NaN or infinite: stop, naming epoch, step and batch; or
    hand nothing over for that batch, count it and go on."""

    prefetch: bool | None = None
    """Read the next batch, and fetch its rows, while this one computes. None: where the mode
    allows it and the rows are on servers; in modes that bring rows (sync and half_async) the
    next batch is then read before the gradients of this one go, and its rows come back with them.
    False where batches are long in coming."""

    quiet: bool = False
    """Show nothing."""

    log_interval_s: float = 5.0
    """Seconds between lines where there is no terminal, and between points in TensorBoard."""

    metrics_window_batches: int = 50
    """The metrics shown while training are over this many last batches of each thread, each
    scored before it was learnt."""

    tensorboard: str | os.PathLike[str] | None = None
    """Directory for TensorBoard's files; worker 0 writes them. Needs the extra `tensorboard`."""

    predictions: Callable[[Any], Any] | None = None
    """Turns the model's output into probabilities for metrics and `predict`. None: by the loss;
    see `Trainer`."""

    groups: Callable[[Any], Any] | None = None
    """Takes the inputs of a batch, gives the group of each example, int[B]; metrics by group,
    as GAUC, need it."""

    stop_timeout_s: float = 30.0
    """When one thread has failed, how long the others may take to come out of their step."""

    def __post_init__(self) -> None:
        require_int(self, "torch_threads", 1, 4096)
        policies = ("raise", "skip")
        require(self.non_finite_loss in policies, self, "non_finite_loss", "'raise' or 'skip'")
        require(self.prefetch in (None, True, False), self, "prefetch", "True, False or None")
        require_bool(self, "quiet")
        require_positive(self, "log_interval_s")
        require_int(self, "metrics_window_batches", 1, 1_000_000)
        require_positive(self, "stop_timeout_s")
        for field in ("predictions", "groups"):
            value = getattr(self, field)
            if value is not None and not callable(value):
                raise ConfigError(f"TrainerConfig.{field} must be callable or None, got {value!r}")
