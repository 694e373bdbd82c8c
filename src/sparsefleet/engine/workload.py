"""The interface between an API and the engine: makes batches, lists their lookups, and runs them.

The engine owns everything around a batch: threads, reading ahead, pulling rows, handing over
gradients, waiting for others, errors, clocks, saves and events. The API owns what happens *inside*
a batch:

* `train.ModuleWorkload` runs a `torch.nn.Module` and a loss;
* the Fluid API runs a lowered program with feeds and fetches.

One step of one thread, as the engine runs it (`engine.training_pass`):

1. ``batch = workload.as_batch(raw, number)`` converts a raw item. It may run in a thread that reads
   ahead.
2. ``workload.lookups(batch.inputs)`` lists the ids looked up in each table. Their rows are pulled
   in one request per server: ahead of time, together with the last push, or now, as the mode
   allows.
3. ``with model.step(...) as step: outcome = runner.train(batch, step)``. Inside, the thread's
   active `nn.StepRows` is ``step.rows``: lookups find the rows pulled in 2, and pull any rows that
   were not planned.
4. As the step ends, its gradients are handed to the mode: those that ``step.rows`` collected and
   those in the ``grad`` of ``runner.module``'s parameters; or, for a runner without a module,
   exactly what it passed to ``step.give(StepGradients(...))``.
5. ``workload.learn(step.rows, batch.inputs, planned=...)`` receives the actual lookups of the step,
   for planning the next batch of this layout.

Evaluation and inference do 1-3 with ``runner.infer(batch)``, without gradients, and create no rows.

A single step outside of a pass (`Executor.run`, `fleet.step`) is 3-5 in the calling thread:

    with model.step(runner.module, batch=batch.inputs, lookups=workload) as step:
        outcome = runner.train(batch, step)

In shapes, B is the number of examples in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

    from sparsefleet.engine.step import Step
    from sparsefleet.nn.lookup import Lookup
    from sparsefleet.nn.step_rows import StepRows

__all__ = ["Batch", "LookupSource", "Outcome", "Runner", "Workload"]


class Batch(NamedTuple):
    """One batch, in the form that runners accept."""

    number: int
    """Position in this pass over the data, from 1."""

    inputs: Any
    """The inputs of the computation: any nested structure of tuples, lists and dicts of tensors,
    such as a feed dict. The ids that are looked up must be in this structure.
    """

    labels: Any
    """Any other data of the batch, such as labels for the loss or the offsets of sequences."""

    size: int
    """B, the number of examples."""


class Outcome(NamedTuple):
    """The result of running one batch. Displays can see the last few results of each thread."""

    size: int
    """B, the number of examples."""

    loss: float = math.nan
    """Mean loss per example; nan for a workload without a loss."""

    output: Any = None
    """The workload's results for metrics and fetches, detached from the graph so they can outlive
    the step; None if nothing is kept.
    """

    labels: Any = None
    """The labels that metrics compare the output with."""

    groups: Any = None
    """The group of each example, int[B], for grouped metrics."""


class Runner(Protocol):
    """Runs the batches of one thread. Not thread-safe: each thread has its own."""

    @property
    def module(self) -> nn.Module | None:
        """Return the replica whose parameters hold the dense gradients when `train` returns.

        The replica is one of `DistributedModel.replicas`. Return None if `train` passes all
        gradients of the step to `Step.give`.
        """

    def train(self, batch: Batch, step: Step) -> Outcome:
        """Run forward and backward; the engine then hands over the gradients.

        Call ``step.backward(loss)`` rather than ``loss.backward()``, which lets modes scale the
        loss. ``step.skip()`` drops the gradients of this batch. ``step.place`` names epoch, worker
        and thread for messages; the engine adds it to any exception raised here.
        """

    def infer(self, batch: Batch) -> Outcome:
        """Run forward only. Gradients are off, and lookups create no rows."""


class LookupSource(Protocol):
    """Predicts the lookups of a batch before it runs. Thread-safe."""

    def lookups(self, inputs: Any) -> list[Lookup] | None:
        """Return the lookups of the batch, with the same tensors that `train` will look up.

        Rows are matched to lookups by table, memory and shape of the ids (`Lookup.matches`): a
        view of the same elements matches; a copy does not match and costs a separate request. An
        empty list means that there are no lookups. None means that the lookups are not known yet;
        rows are then pulled as they are looked up.
        """

    def learn(self, rows: StepRows, inputs: Any, *, planned: bool) -> None:
        """Learn which lookups a batch causes; those of its training step are in ``rows.lookups``.

        planned: whether `lookups` had predicted the lookups of this batch.

        Workloads that know their lookups by construction do nothing. `nn.LookupPlans` implements
        both methods for any nested structure of tensors.
        """


class Workload(LookupSource, Protocol):
    """A program or module that is trained, evaluated or run batch by batch."""

    def as_batch(self, raw: Any, number: int) -> Batch:
        """Convert a raw item, the `number`-th of its pass. Thread-safe.

        Raises a ConfigError that names the batch if the data is malformed.
        """

    def runners(self, threads: int) -> Sequence[Runner]:
        """Return one runner per thread, all sharing parameters; called before each pass."""
