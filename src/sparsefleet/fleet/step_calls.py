"""How a model bound to a store takes its steps."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparsefleet.fleet.flat_parameters import FlatParameters
from sparsefleet.fleet.training_step import Step
from sparsefleet.modes import Mode
from sparsefleet.nn import LookupPlans, PulledRows, StepRows, pull_rows
from sparsefleet.nn.pulled_rows import plan_rows

__all__ = ["StepCalls"]


class StepCalls(ABC):
    """Replicas, steps and evaluation; a part of `DistributedModel`."""

    model: nn.Module

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """Who waits for whom."""

    def _start_steps(self, flat: FlatParameters, model: nn.Module, *, spares_model: bool) -> None:
        self._flat = flat
        self._spares_model = spares_model
        self._replicas: list[nn.Module] = [model]
        self._parameters = {id(model): flat.parameters_of(model)}
        self._plans = LookupPlans()
        self._lock = threading.Lock()

    def replicas(self, count: int) -> list[nn.Module]:
        """`count` models over the same parameters, one a thread; the first is the model itself.

        Unless torch steps on the model's own parameters, which no thread may use then.
        """
        first = 1 if self._spares_model and count > 1 else 0
        with self._lock:
            while len(self._replicas) < first + count:
                replica = self._flat.replica()
                self._parameters[id(replica)] = self._flat.parameters_of(replica)
                self._replicas.append(replica)
            return self._replicas[first : first + count]

    def step(
        self,
        replica: nn.Module | None = None,
        *,
        batch: Any = None,
        pulled: PulledRows | None = None,
    ) -> Step:
        """A training step as a context: forward and backward inside, gradients go at its end.

        With the `batch` (any nesting of tensors), the rows for all its ids come in one request a
        server, once a first batch has shown which ids go where. `pulled` are rows that `prefetch`
        brought for this batch.
        """
        mode = self.mode
        learn = None if batch is None else self._plans.learn_more
        if pulled is not None and pulled.wanted():  # planned, but no step brought the rows
            pulled = None
        if pulled is None and batch is not None:
            lookups = self._plans.lookups(batch)
            if lookups:
                pulled = pull_rows(lookups, mode.pull)
            elif lookups is None:
                learn = self._plans.learn
        rows = StepRows(mode.pull, pulled=pulled)
        return Step(
            mode, rows, self._parameters[id(replica or self.model)], batch=batch, learn=learn
        )

    def prefetch(self, batch: Any) -> PulledRows | None:
        """The rows of a batch to come; None where the mode wants them fresh, or before a plan."""
        lookups = self._plans.lookups(batch) if self.mode.may_prefetch else None
        return pull_rows(lookups, self.mode.pull) if lookups else None

    def plan_ahead(self, batch: Any) -> PulledRows | None:
        """What a batch to come will look up, without the rows, for `Step.bring`; None where the
        mode does not bring rows, or before a plan."""
        lookups = self._plans.lookups(batch) if self.mode.brings_rows else None
        return plan_rows(lookups) if lookups else None

    @contextmanager
    def evaluating(
        self, replica: nn.Module | None = None, *, batch: Any = None
    ) -> Iterator[nn.Module]:
        """The model in evaluation: no gradients, rows are read and none is created.

        `with distributed.evaluating() as model: model(ids)`. For `batch` see `step`.
        """
        model, pull = replica or self.model, self.mode.pull
        lookups = None if batch is None else self._plans.lookups(batch)
        pulled = pull_rows(lookups, pull, train=False) if lookups else None
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad(), StepRows(pull, train=False, pulled=pulled) as rows:
                yield model
        finally:
            for module, was_training in modes:
                module.training = was_training
        if batch is not None and lookups is None:
            self._plans.learn(rows, batch)
