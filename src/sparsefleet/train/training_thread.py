"""What one training thread does: batch, forward, loss, backward, hand over, again."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from sparsefleet.errors import ConfigError, NonFiniteLossError
from sparsefleet.train.batch import Batch, describe, moved, run_model
from sparsefleet.train.batch_supply import BatchSupply, Supplied
from sparsefleet.train.kept_outputs import KeptOutputs
from sparsefleet.train.save_gate import SaveGate
from sparsefleet.train.step_clock import Scored, StepClock
from sparsefleet.train.thread_team import add_note
from sparsefleet.train.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["Place", "TrainingThread", "loss_value"]

_MAX_WINDOW_ELEMENTS = 2**24  # outputs kept for the figures shown: 64 MiB a thread


class Place(NamedTuple):
    """Where a step happens, for messages."""

    epoch: int
    worker: int
    thread: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, worker {self.worker}, thread {self.thread}"


class TrainingThread:
    """Trains on batches until there are none. Used by one thread."""

    def __init__(
        self,
        distributed: DistributedModel,
        replica: nn.Module,
        loss: Callable[[Any, Any], Tensor] | None,
        config: TrainerConfig,
        place: Place,
    ) -> None:
        self.clock = StepClock(config.metrics_window_batches)
        self._distributed = distributed
        self._replica = replica
        self._loss = loss
        self._config = config
        self._place = place
        self._max_kept = _MAX_WINDOW_ELEMENTS // config.metrics_window_batches
        self._kept = KeptOutputs()

    def run(self, supply: BatchSupply, gate: SaveGate | None = None) -> None:
        """Returns at the end of the data, having told the mode. `gate`: where saves stop it."""
        clock = self.clock
        begun = perf_counter()
        supplied: Supplied | None = None
        try:
            while (supplied := self._next_batch(supply, gate)) is not None:
                self._train_on(supplied, supply)
                supplied = None  # what the data raises is not of the batch before
            self._distributed.leave()
            if gate is not None:
                gate.leave()
        except Exception as error:
            at = "" if supplied is None else f", batch {supplied.batch.number}"
            step = clock.steps + clock.skipped + 1
            add_note(error, f"raised in training: {self._place}, step {step} of the thread{at}")
            raise
        finally:
            clock.elapsed_s = perf_counter() - begun
            supply.close()

    def _next_batch(self, supply: BatchSupply, gate: SaveGate | None) -> Supplied | None:
        may_read_ahead = True
        if gate is not None:
            begun = perf_counter()
            may_read_ahead = gate.reach(self.clock.steps, has_ahead=supply.has_ahead)
            self.clock.save_s += perf_counter() - begun
        return supply.take(self.clock, read_ahead=may_read_ahead)

    def _train_on(self, supplied: Supplied, supply: BatchSupply) -> None:
        batch, pulled = supplied
        clock = self.clock
        begun = perf_counter()
        with self._distributed.step(self._replica, batch=batch.inputs, pulled=pulled) as step:
            entered = perf_counter()
            inputs, labels = moved(batch[1:3], self._distributed.device)
            output = run_model(self._replica, inputs)
            loss = output if self._loss is None else apply_loss(self._loss, output, labels)
            value = loss_value(loss)
            finite = math.isfinite(value)
            if finite:
                step.backward(loss)
            else:
                self._refuse(value, batch)
                step.skip()
            step.bring(lambda: supply.read_ahead(clock))
            computed = perf_counter()
        clock.hand_over_s += step.hand_over_s
        clock.compute_s += computed - entered
        clock.pull_s += entered - begun
        if not finite:
            clock.skipped += 1
            return
        clock.steps += 1
        clock.examples += batch.size
        clock.loss_sum += value * batch.size
        clock.recent.append(self._scored(output, batch, value))

    def _scored(self, output: Any, batch: Batch, value: float) -> Scored:
        groups = None
        if self._loss is None or not isinstance(output, Tensor):
            kept = None
        else:
            kept = self._kept.keep(output) if output.numel() <= self._max_kept else None
            if kept is not None and self._config.groups is not None:
                groups = self._config.groups(batch.inputs)
        return Scored(kept, batch.labels, groups, value, batch.size)

    def _refuse(self, value: float, batch: Batch) -> None:
        if self._config.non_finite_loss == "skip":
            return
        clock = self.clock
        raise NonFiniteLossError(
            f"the loss is {value} in {self._place}, step {clock.steps + clock.skipped + 1} of the "
            f"thread, batch {batch.number}; nothing of this batch was applied. Look for a "
            "division by 0 or a log of 0, lower the learning rate, or go on without such batches: "
            'TrainerConfig(non_finite_loss="skip")'
        )


def apply_loss(loss: Callable[[Any, Any], Tensor], output: Any, labels: Any) -> Tensor:
    """The loss; what it raises gets a note of what it was given."""
    try:
        return loss(output, labels)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        add_note(
            error,
            f"the loss was given {describe(output)} as output and {describe(labels)} as labels; "
            "a number a record is Slot(name, 'float', ()), with a shape",
        )
        raise


def loss_value(loss: Any) -> float:
    """The loss as a number; an error that says what it is instead, if it is no scalar."""
    if not isinstance(loss, Tensor):
        raise ConfigError(f"the loss must be a scalar tensor, got a {type(loss).__name__}")
    if loss.numel() != 1:
        raise ConfigError(
            f"the loss must be a scalar, got a tensor of shape {list(loss.shape)}: "
            "reduce it, as with .mean()"
        )
    return loss.item()
