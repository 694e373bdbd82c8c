"""The API for imperative training in several processes; only one process is supported."""

from __future__ import annotations

import os
from typing import Any

from sparsefleet.fluid.dygraph.layer import Layer
from sparsefleet.fluid.framework.call_site import ProgramError, call_site

__all__ = ["DataParallel", "Env", "ParallelEnv", "ParallelStrategy", "prepare_context"]

_SELECTED_GPUS = "FLAGS_selected_gpus"


class ParallelEnv:
    """This process's index and the number of processes, from the launcher's environment."""

    def __init__(self) -> None:
        self.nranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        self.local_rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        self.dev_id = int(os.environ.get(_SELECTED_GPUS, "0") or 0)
        self.current_endpoint = os.environ.get("PADDLE_CURRENT_ENDPOINT", "")
        self.trainer_endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")


Env = ParallelEnv


class ParallelStrategy:
    """The group of processes that train together."""

    def __init__(self) -> None:
        env = ParallelEnv()
        self.nranks, self.local_rank = env.nranks, env.local_rank
        self.current_endpoint, self.trainer_endpoints = (
            env.current_endpoint,
            env.trainer_endpoints,
        )


def prepare_context(strategy: ParallelStrategy | None = None) -> ParallelStrategy:
    """Return the group of processes in this job.

    Raises an error if there is more than one process.
    """
    made = strategy or ParallelStrategy()
    if made.nranks > 1:
        raise ProgramError.at(
            call_site(),
            "dygraph.parallel",
            f"got {made.nranks} processes, but imperative training runs in one process; use a "
            "program with fluid.incubate.fleet.collective, or sparsefleet.Trainer with ranks",
        )
    return made


class DataParallel(Layer):
    """Wraps a layer whose gradients are averaged over processes; only one process is supported."""

    def __init__(self, layers: Layer, strategy: ParallelStrategy) -> None:
        super().__init__("data_parallel")
        prepare_context(strategy)
        self._layers = layers

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self._layers(*inputs, **kwargs)

    def scale_loss(self, loss: Any) -> Any:
        """Divide the loss by the number of processes."""
        return loss

    def apply_collective_grads(self) -> None:
        """Average gradients over processes; with one process, they do not change."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._layers.state_dict(*args, **kwargs)

    def set_dict(self, *args: Any, **kwargs: Any) -> None:
        self._layers.set_dict(*args, **kwargs)

    load_dict = set_dict
