"""Threads of one pass update the same dense parameters: interleaved updates moved weights so far
that a program with Adam on two threads learned only in some runs.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefleet.fluid.lowering.registry import find_op

_MEETING_S = 0.02
BETAS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
KINDS: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    # initial states, settings
    "adam": ((0, 0, 0.9, 0.999), BETAS),
    "adamax": ((0, 0, 0.9), BETAS),
    "lamb": ((0, 0), {**BETAS, "weight_decay": 0.0}),
    "rmsprop": ((0, 0, 0), {"decay": 0.9, "epsilon": 1e-6, "momentum": 0.5, "centered": True}),
}


class Interrupted(TorchDispatchMode):
    """Starts a thread before the torch operation with this number and gives it time to end."""

    def __init__(self, number: int, thread: Thread) -> None:
        super().__init__()
        self.number = number
        self.thread = thread
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.seen == self.number:
            self.thread.start()
            self.thread.join(_MEETING_S)
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Updated:
    """A parameter with its states, and the update under test."""

    def __init__(self, kind: str) -> None:
        states, self.settings = KINDS[kind]
        self.function = find_op(kind).function
        self.value = torch.ones(2)
        self.states = [torch.full((2,) if state == 0 else (1,), float(state)) for state in states]

    def update(self, *gradient: float) -> None:
        rate = torch.tensor([0.001])
        self.function(self.value, torch.tensor(gradient), rate, *self.states, **self.settings)


def in_turn(kind: str, *gradients: tuple[float, ...]) -> torch.Tensor:
    done = Updated(kind)
    for gradient in gradients:
        done.update(*gradient)
    return done.value


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_interrupted_by_another_is_as_if_one_came_after_the_other(kind: str) -> None:
    first, second = (
        (0.0, 1.0),
        (1.0, 0.0),
    )  # as for units that are inactive for all examples of a batch
    allowed = [in_turn(kind, first, second), in_turn(kind, second, first)]
    number, was_reached = 0, True
    while was_reached:
        shared = Updated(kind)
        other = Thread(target=shared.update, args=second)
        with Interrupted(number, other) as interrupted:
            shared.update(*first)
        was_reached = interrupted.seen > number
        if was_reached:
            other.join()
            found = shared.value
            assert any(torch.allclose(found, one, atol=1e-6) for one in allowed), (number, found)
        number += 1
    assert number > 5  # also interrupted within the update
