"""The interface between an API and the engine: how to make a batch, what it looks up, how to run
it.

The engine owns everything around a batch: threads, reading ahead, pulling rows, handing over
gradients, waiting for others, errors, clocks, saves and events. The API owns what happens *inside*
one:

* `train.ModuleWorkload` runs a `torch.nn.Module` and a loss;
* the Fluid API runs a lowered program with feeds and fetches.

One step of one thread, as the engine runs it (`engine.training_pass`):

1. ``batch = workload.as_batch(raw, number)`` converts a raw item. It may run in a thread that reads
ahead.
2. ``workload.lookups(batch.inputs)`` lists the ids looked up in each table. Their rows are pulled
in one request per server: ahead of time, together with the last push, or now, as the mode allows.
3. ``with model.step(...) as step: outcome = runner.train(batch, step)``. Inside, the thread's
   active `nn.StepRows` is ``step.rows``: lookups find the rows that were pulled in 2, and pull
   whatever was not planned.
4. As the step ends, its gradients are handed to the mode: those that ``step.rows`` collected and
   those in the ``grad`` of ``runner.module``'s parameters; or, for a runner without a module,
   exactly what it passed to ``step.give(StepGradients(...))``.
5. ``workload.learn(step.rows, batch.inputs, planned=...)`` receives what the step did look up, so
that the next batch of this layout can be planned.

Evaluation and inference do 1-3 with ``runner.infer(batch)``, without gradients, and create no rows.

A single step outside of a pass (`Executor.run`, `fleet.step`) is 3-5 in the calling thread:

    with model.step(runner.module, batch=batch.inputs, lookups=workload) as step:
        outcome = runner.train(batch, step)

Letters: B examples in a batch.
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
    """One batch, in the form that runners take."""

    number: int
    """Position in this pass over the data, from 1."""

    inputs: Any
    """What the workload computes with: any nested structure of tuples, lists and dicts of
    tensors, so that ids in it can be found. A feed dict is one.
    """

    labels: Any
    """Anything else that belongs to the batch, such as what a loss compares the output with, or
    the offsets of sequences.
    """

    size: int
    """B, the number of examples."""


class Outcome(NamedTuple):
    """The result of running one batch. The last ones of each thread stay visible to displays."""

    size: int
    """B, the number of examples."""

    loss: float = math.nan
    """Mean loss per example; nan for a workload without one."""

    output: Any = None
    """For metrics and fetches: what the workload computed, detached from the graph so that it
    can outlive the step; None if nothing is kept.
    """

    labels: Any = None
    """What metrics compare the output with."""

    groups: Any = None
    """The group of each example, int[B], for metrics by group."""


class Runner(Protocol):
    """Runs the batches of one thread. Not thread-safe: each thread has its own."""

    @property
    def module(self) -> nn.Module | None:
        """Return the replica whose parameters hold the dense gradients when `train` returns.

        It is one of `DistributedModel.replicas`. None: `train` passes all gradients of the step to
        `Step.give`.
        """

    def train(self, batch: Batch, step: Step) -> Outcome:
        """Run forward and backward; the engine then hands over the gradients.

        Call ``step.backward(loss)`` rather than ``loss.backward()``, so that modes can scale the
        loss. ``step.skip()`` drops the gradients of this batch. ``step.place`` names epoch, worker
        and thread for messages; the engine adds it to whatever this raises.
        """

    def infer(self, batch: Batch) -> Outcome:
        """Run forward only. Gradients are off, and lookups create no rows."""


class LookupSource(Protocol):
    """Predicts what a batch looks up before it runs. Thread-safe."""

    def lookups(self, inputs: Any) -> list[Lookup] | None:
        """Return what the batch will look up, using the same tensors that `train` will look up.

        Rows are matched to lookups by table, memory and shape of the ids (`Lookup.matches`): a
        view of the same elements matches, a copy does not and costs a separate request. An empty
        list means no lookups. None means unknown yet: rows are then pulled as they are looked up.
        """

    def learn(self, rows: StepRows, inputs: Any, *, planned: bool) -> None:
        """Learn from a training step: ``rows.lookups`` is what it looked up.

        planned: `lookups` knew the batch. Workloads that know their lookups by construction do
        nothing. `nn.LookupPlans` implements both methods for any nested structure of tensors.
        """


class Workload(LookupSource, Protocol):
    """A program or module to be trained, evaluated or run, batch by batch."""

    def as_batch(self, raw: Any, number: int) -> Batch:
        """Convert a raw item, the `number`-th of its pass. Thread-safe.

        Raises ConfigError for data of the wrong form, naming the batch.
        """

    def runners(self, threads: int) -> Sequence[Runner]:
        """Return one runner per thread, over shared parameters; called before each pass."""
