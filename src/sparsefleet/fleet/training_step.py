"""One training step of one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.flat_parameters import (
    drop_gradients,
    take_gradient_parts,
    take_gradients,
)
from sparsefleet.modes import Mode, StepGradients
from sparsefleet.nn import PulledRows, StepRows

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Step"]


class Step:
    """A step as a context: forward and backward inside; at its end the gradients are handed over.

    An exception inside, or `skip()`, hands nothing over. Not thread-safe; a step belongs to the
    thread that entered it.
    """

    def __init__(
        self,
        mode: Mode,
        rows: StepRows,
        parameters: Mapping[str, Sequence[nn.Parameter]],
        *,
        batch: Any = None,
        learn: Callable[[StepRows, Any], None] | None = None,
    ) -> None:
        self._mode = mode
        self._rows = rows
        self._parameters = parameters
        self._batch = batch
        self._learn = learn
        self._skipped = False
        self._read_ahead: Callable[[], PulledRows | None] | None = None
        self._forward: AbstractContextManager[None] | None = None
        self.hand_over_s = 0.0
        """Seconds that handing over took, waiting for others included; 0 before."""

    @property
    def rows(self) -> StepRows:
        """The rows looked up in this step."""
        return self._rows

    def skip(self) -> None:
        """This step's gradients are dropped."""
        self._skipped = True

    def bring(self, read: Callable[[], PulledRows | None]) -> None:
        """The rows that this thread's next step wants are to come back with the gradients of this
        one; they are there after a step that handed something over. See `plan_ahead`.

        read: says which; called at the end, when lookups are no longer of this step.
        """
        self._read_ahead = read

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()` as the mode wants it: mode "collective" may scale the loss."""
        if self._forward is not None:
            self._end_forward(None, None, None)
        self._mode.backward(loss)

    def __enter__(self) -> Self:
        self._rows.__enter__()
        forward = self._mode.forward()
        if forward is not None:
            forward.__enter__()
            self._forward = forward
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rows.__exit__(kind, error, trace)
        if self._forward is not None:
            self._end_forward(kind, error, trace)
        if error is not None or self._skipped:
            drop_gradients(self._parameters)
            return
        if self._learn is not None:
            self._learn(self._rows, self._batch)
        begun = perf_counter()
        gradients = StepGradients(sparse=self._rows.gradients())
        if self._mode.takes_parts:
            gradients.dense_parts = take_gradient_parts(self._parameters)
        else:
            gradients.dense = take_gradients(self._parameters)
        found = gradients.sparse or gradients.dense or gradients.dense_parts
        if not found and not self._rows.had_backward and not self._mode.keeps_dense:
            raise ConfigError(
                "the step ended without any gradient: call loss.backward() inside it, "
                "or step.skip()"
            )
        self.hand_over_s = perf_counter() - begun
        ahead = None if self._read_ahead is None else self._read_ahead()
        begun = perf_counter()
        self._hand_over(gradients, ahead)
        self.hand_over_s += perf_counter() - begun

    def _hand_over(self, gradients: StepGradients, ahead: PulledRows | None) -> None:
        if ahead is not None:
            gradients.wanted = ahead.wanted()
        self._mode.hand_over(gradients)
        if ahead is not None:
            for table, rows in gradients.brought.items():
                ahead.tables[table].rows = rows

    def _end_forward(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._forward is not None
        forward, self._forward = self._forward, None
        forward.__exit__(kind, error, trace)
