"""Settings of a Trainer that rarely need changing, and checks of its arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from sparsefleet.engine.profiling import ProfileConfig, as_profile
from sparsefleet.engine.training_pass import LoopConfig
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive
from sparsefleet.modes import CollectiveConfig, ModeConfig
from sparsefleet.store.remote_store import WIRE_DTYPES, WireDtype

__all__ = ["TrainerConfig", "check_collective", "check_config", "check_trained"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """How a Trainer runs its threads, handles bad losses, and shows progress.

    >>> TrainerConfig(non_finite_loss="skip", quiet=True).log_interval_s
    5.0
    """

    torch_threads: int = 1
    """Number of threads that torch uses inside each training thread. More than 1 pays off only if a
    thread has several cores to itself, as with `threads=1` on a large machine.
    """

    non_finite_loss: Literal["raise", "skip"] = "raise"
    """How to handle a NaN or infinite loss: raise an error that names epoch, thread and batch, or
    skip the batch, count it and continue.
    """

    clip_grad_norm: float | None = None
    """Like `torch.nn.utils.clip_grad_norm_`, scale the gradients of each batch, for rows and dense
    parameters together, to at most this norm. Gradients are clipped before they are merged with
    those of other threads and workers. Not supported in mode "collective".
    """

    prefetch: bool | None = None
    """Read the next batch, and fetch its rows, while the current batch computes. If None, prefetch
    if the mode allows it and the rows are on servers. In sync and half_async, the next batch is
    then read before the gradients of the current batch are sent, and its rows come back in the
    reply. Use False if batches are slow to arrive.
    """

    quiet: bool = False
    """Show nothing."""

    log_interval_s: float = 5.0
    """Seconds between lines if there is no terminal, and between points in TensorBoard."""

    metrics_window_batches: int = 50
    """Number of recent batches per thread that the metrics shown during training cover. Each batch
    is scored before the model learns from it.
    """

    tensorboard: str | os.PathLike[str] | None = None
    """Directory for TensorBoard's files; worker 0 writes them. Requires the `tensorboard` extra."""

    validate_every_steps: int | None = None
    """Also evaluate `fit(validation=...)` within epochs, when a worker has taken this many steps
    since the last evaluation. All workers pause for the evaluation. If threads step together (sync,
    half_async, hybrid), their common step is counted once.
    """

    profile: str | os.PathLike[str] | ProfileConfig | None = None
    """Write a trace of some steps of the first epoch, over all processes, to this file; see
    `ProfileConfig`. Must be the same on all workers."""

    predictions: Callable[[Any], Any] | None = None
    """Converts the model's output to probabilities for metrics and `predict`. If None, the function
    depends on the loss; see `Trainer`.
    """

    groups: Callable[[Any], Any] | None = None
    """Takes the inputs of a batch and returns the group of each example, int[B]; required by
    grouped metrics such as GAUC.
    """

    wire_dtype: WireDtype | None = None
    """Number format between this worker and servers on other hosts: "float32", or "bf16" for half
    the bytes; see `sparsefleet.store.RemoteStoreConfig`. None uses `SPARSEFLEET_WIRE_DTYPE`."""

    stop_timeout_s: float = 30.0
    """Seconds that other threads have to leave their step after a thread has failed."""

    def __post_init__(self) -> None:
        require_int(self, "torch_threads", 1, 4096)
        policies = ("raise", "skip")
        require(self.non_finite_loss in policies, self, "non_finite_loss", "'raise' or 'skip'")
        if self.clip_grad_norm is not None:
            require_positive(self, "clip_grad_norm")
        require(self.prefetch in (None, True, False), self, "prefetch", "True, False or None")
        require_bool(self, "quiet")
        require_positive(self, "log_interval_s")
        require_int(self, "metrics_window_batches", 1, 1_000_000)
        require_positive(self, "stop_timeout_s")
        require(self.wire_dtype in (None, *WIRE_DTYPES), self, "wire_dtype", "'float32' or 'bf16'")
        as_profile(self.profile)
        if self.validate_every_steps is not None:
            require_int(self, "validate_every_steps", 1, 2**62)
        for field in ("predictions", "groups"):
            value = getattr(self, field)
            if value is not None and not callable(value):
                raise ConfigError(f"TrainerConfig.{field} must be callable or None, got {value!r}")

    def loop(self) -> LoopConfig:
        """Return the settings of the training loop as the engine's `LoopConfig`."""
        return LoopConfig(
            torch_threads=self.torch_threads,
            prefetch=self.prefetch,
            window_batches=self.metrics_window_batches,
            stop_timeout_s=self.stop_timeout_s,
            quiet=self.quiet,
        )


def check_trained(model: object, loss: object, threads: object) -> None:
    """Check the arguments of a Trainer; raise a ConfigError that names the invalid one."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(loss, type):
        raise ConfigError(
            f"loss must be an instance, got the class {loss.__name__}: pass {loss.__name__}()"
        )
    if loss is not None and not callable(loss):
        raise ConfigError(
            f"loss must be a function of (output, labels), or None if the model's output is the "
            f"loss; got a {type(loss).__name__}"
        )
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ConfigError(f"threads must be an int >= 1, got {threads!r}")


def check_config(config: object) -> None:
    """Raise ConfigError unless `config` is a TrainerConfig or None."""
    if config is None or isinstance(config, TrainerConfig):
        return
    found = f"the class {config.__name__}" if isinstance(config, type) else f"{config!r:.200}"
    raise ConfigError(f"config must be a TrainerConfig(...) or None, got {found}")


def check_collective(mode: ModeConfig | None, config: TrainerConfig) -> None:
    """Raise ConfigError for options that are unsupported when workers step in unison."""
    if not isinstance(mode, CollectiveConfig):
        return
    if config.clip_grad_norm is not None:
        raise ConfigError(
            "TrainerConfig.clip_grad_norm: mode 'collective' sums gradients during the backward "
            "pass, so they cannot be clipped first; use a different mode or your own training loop"
        )
    if mode.strategy.sync_batch_norm and config.non_finite_loss == "skip":
        raise ConfigError(
            "sync_batch_norm normalizes each batch across all workers, so one worker cannot skip "
            "its batch: TrainerConfig.non_finite_loss must be 'raise', got 'skip'"
        )
