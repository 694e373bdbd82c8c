"""One training step of one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor, nn

from sparsefleet.engine.batch_tensors import first_tensor
from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.flat_parameters import (
    drop_gradients,
    take_gradient_parts,
    take_gradients,
)
from sparsefleet.engine.workload import LookupSource
from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import BatchOrigin, StepGradients
from sparsefleet.nn.pulled_rows import PulledRows
from sparsefleet.nn.step_rows import StepRows

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ReadAhead", "Step", "StepPosition"]


class StepPosition(NamedTuple):
    """Which step this is (epoch, worker and thread), for messages."""

    epoch: int
    worker: int
    thread: int
    step: int
    """The step in this pass of this thread, counted from 1."""

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch}, worker {self.worker}, thread {self.thread}, step {self.step} of "
            "this thread"
        )


class ReadAhead(Protocol):
    """Reads a thread's next batch at the end of its current step."""

    def read_ahead(self) -> PulledRows | None:
        """Return the lookups of the next batch, or None if no rows are needed.

        Their rows are filled in later, if the push of the current step returns them.
        """


class Step:
    """A training step: run forward and backward inside it; its gradients are sent when it ends.

    An exception inside the step, or a call to `skip()`, drops the gradients. Not thread-safe: a
    step belongs to the thread that entered it.

    parameters: the parameters whose gradients are sent, by dense table.
    batch, lookups: once the step is over, `lookups` learns which rows `batch` needed; see
        `LookupSource`.
    is_planned: whether `lookups` predicted the lookups of this batch.
    ahead: reads the next batch before the gradients are sent, so its rows come back in the reply.
    origin: identifies the batch for servers that track what they have applied.
    clock: outside of a pass, counts this step and records its start; see `WorkerMetrics`.
    """

    def __init__(
        self,
        mode: Mode,
        rows: StepRows,
        parameters: Mapping[str, Sequence[nn.Parameter]],
        *,
        batch: Any = None,
        lookups: LookupSource | None = None,
        is_planned: bool = False,
        ahead: ReadAhead | None = None,
        place: StepPosition | None = None,
        origin: BatchOrigin | None = None,
        clock: tuple[StepClock, float] | None = None,
    ) -> None:
        self._mode = mode
        self._rows = rows
        self._parameters = parameters
        self._batch = batch
        self._lookups = lookups
        self._is_planned = is_planned
        self._ahead = ahead
        self._origin = origin
        self._clock = clock
        self._entered = 0.0
        self._loss: float | None = None
        self._given: StepGradients | None = None
        self._forward: AbstractContextManager[None] | None = None
        self.place = place
        """Epoch, worker, thread and step; None outside of a pass."""
        self.is_skipped = False
        """Whether `skip` was called."""
        self.max_norm: float | None = None
        """Clip the gradients of this step to this norm; see `StepGradients.clip`."""
        self.hand_over_s = 0.0
        """Seconds spent handing over gradients, including waiting for others; 0 before that."""

    @property
    def rows(self) -> StepRows:
        """Return the rows looked up in this step."""
        return self._rows

    def skip(self) -> None:
        """Drop the gradients of this step."""
        self.is_skipped = True

    def backward(self, loss: Tensor) -> None:
        """Run ``loss.backward()`` as the mode requires; mode "collective" may scale the loss."""
        if self._forward is not None:
            self._end_forward(None, None, None)
        if self._clock is not None:
            self._loss = loss.item() if loss.numel() == 1 else None
        self._mode.backward(loss)

    def give(self, gradients: StepGradients) -> None:
        """Hand exactly these gradients to the mode when the step ends.

        For workloads that compute their own gradients; `rows` and the parameters are then not used.
        """
        if self._given is not None:
            raise ConfigError(
                "this step already has gradients: call step.give() only once per step"
            )
        self._given = gradients

    def __enter__(self) -> Self:
        self._rows.__enter__()
        forward = self._mode.forward()
        if forward is not None:
            forward.__enter__()
            self._forward = forward
        self._entered = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        computed = perf_counter()
        self._end(kind, error, trace)
        if self._clock is not None and error is None:
            clock, begun = self._clock
            clock.count(
                _num_examples(self._batch, self._rows),
                begun,
                self._entered,
                computed,
                hand_over_s=self.hand_over_s,
                loss=self._loss,
                is_skipped=self.is_skipped,
            )

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rows.__exit__(kind, error, trace)
        if self._forward is not None:
            self._end_forward(kind, error, trace)
        if error is not None or self.is_skipped:
            drop_gradients(self._parameters)
            if error is None and self._origin is not None:
                self._mode.drop(self._origin)
            return
        if self._lookups is not None:
            self._lookups.learn(self._rows, self._batch, planned=self._is_planned)
        begun = perf_counter()
        gradients = self._taken() if self._given is None else self._given
        if self.max_norm is not None:
            gradients.clip(self.max_norm)
        gradients.origin = self._origin
        self.hand_over_s = perf_counter() - begun
        wanted = None if self._ahead is None else self._ahead.read_ahead()
        begun = perf_counter()
        self._hand_over(gradients, wanted)
        self.hand_over_s += perf_counter() - begun

    def _taken(self) -> StepGradients:
        gradients = StepGradients(sparse=self._rows.gradients())
        if self._mode.takes_parts:
            gradients.dense_parts = take_gradient_parts(self._parameters)
        else:
            gradients.dense = take_gradients(self._parameters)
        found = gradients.sparse or gradients.dense or gradients.dense_parts
        if not found and not self._rows.had_backward and not self._mode.keeps_dense:
            raise ConfigError(
                "the step ended without gradients: call loss.backward() or step.skip() inside it"
            )
        return gradients

    def _hand_over(self, gradients: StepGradients, wanted: PulledRows | None) -> None:
        if wanted is not None:
            gradients.wanted = wanted.wanted()
        self._mode.hand_over(gradients)
        if wanted is not None:
            for table, rows in gradients.brought.items():
                wanted.tables[table].rows = rows

    def _end_forward(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._forward is not None
        forward, self._forward = self._forward, None
        forward.__exit__(kind, error, trace)


def _num_examples(batch: Any, rows: StepRows) -> int:
    """Return the number of examples in a step of a custom loop.

    The number comes from the batch, if given, or from the first lookup, preferably one that has
    several ids per example.
    """
    known = getattr(batch, "num_examples", None)  # a program's feed
    if isinstance(known, int):
        return known
    tensor = first_tensor(batch)
    if tensor is None:
        ids = [lookup.ids for lookup in rows.lookups]
        tensor = next((each for each in ids if each.dim() > 1), ids[0] if ids else None)
    return tensor.size(0) if tensor is not None and tensor.dim() > 0 else 1
