"""What a training thread counts while it runs; a few additions a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Scored", "StepClock", "total"]


class Scored(NamedTuple):
    """A batch of the recent past, for the figures that are shown."""

    output: Any
    """What the model said, without graph; None where it is not kept."""
    labels: Any
    groups: Any
    loss: float
    size: int


class StepClock:
    """Seconds by what they went to, and counts, of one thread in one pass.

    Written by its thread alone. Others may read it meanwhile: single numbers are whole, two
    numbers may be of different steps.
    """

    __slots__ = (
        "compute_s",
        "data_s",
        "elapsed_s",
        "examples",
        "hand_over_s",
        "loss_sum",
        "pull_s",
        "recent",
        "save_s",
        "skipped",
        "steps",
    )

    def __init__(self, window_batches: int = 1) -> None:
        self.steps = 0
        """Steps finished, skipped ones not among them."""
        self.examples = 0
        """Examples of those."""
        self.skipped = 0
        """Batches whose loss was not finite."""
        self.loss_sum = 0.0
        """Sum of loss * examples over the steps."""
        self.data_s = 0.0
        """Waiting for batches."""
        self.pull_s = 0.0
        """Waiting for rows before the model runs."""
        self.compute_s = 0.0
        """Forward, loss, backward."""
        self.hand_over_s = 0.0
        """From the end of the backward pass until the mode let the thread go on."""
        self.save_s = 0.0
        """Stopped for saves."""
        self.elapsed_s = 0.0
        """The thread's whole time; set when it ends."""
        self.recent: deque[Scored] = deque(maxlen=window_batches)
        """The last batches."""

    @property
    def loss(self) -> float:
        """Mean loss of an example; nan before the first step."""
        return self.loss_sum / self.examples if self.examples else float("nan")


def total(clocks: Iterable[StepClock]) -> StepClock:
    """The sums over threads or passes; no recent batches.

    >>> first, second = StepClock(), StepClock()
    >>> first.data_s, second.data_s = 1.0, 2.5
    >>> total([first, second]).data_s
    3.5
    """
    result = StepClock()
    for clock in clocks:
        for name in StepClock.__slots__:
            if name != "recent":
                setattr(result, name, getattr(result, name) + getattr(clock, name))
    return result
