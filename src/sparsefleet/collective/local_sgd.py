"""LocalSGD: ranks train independently for some steps, then continue from the mean parameters.

In shapes, R is the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from sparsefleet.collective.buckets import Bucket
from sparsefleet.collective.reduction import Reduction, Traffic, make_reductions
from sparsefleet.collective.strategy import CollectiveStrategy, LocalSgdConfig
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError

__all__ = ["LocalSgd"]


class LocalSgd:
    """Averages parameters over ranks after a given number of optimizer steps.

    Each rank computes how far its parameters have moved since the last averaging. All ranks then
    continue from the last averaged parameters moved by the mean, so parameters are bit-identical on
    all ranks. The mean includes only ranks that have made a step since the last averaging.
    Optimizer state stays local. Not thread-safe.

    >>> weight = torch.zeros(1)
    >>> local = LocalSgd([("weight", weight)], World.join(), LocalSgdConfig(steps=2))
    >>> [local.step() for _ in range(4)]
    [False, True, False, True]
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        world: World,
        config: LocalSgdConfig,
        *,
        reduction: Reduction | None = None,
        traffic: Traffic | None = None,
        at_meeting: Callable[[int], object] | None = None,
    ) -> None:
        """Create the schedule. All ranks must do so, with equal parameters.

        reduction: may be shared with other objects as long as it is not used concurrently.
        at_meeting: called whenever ranks average their parameters, with the number of ranks in the
            average.
        """
        self._parameters = list(named_parameters)
        self._world = world
        self._config = config
        self._at_meeting = at_meeting
        self._own_reductions: list[Reduction] = []
        if reduction is None and world.size > 1:
            self._own_reductions = make_reductions(
                world, CollectiveStrategy(), traffic or Traffic()
            )
            reduction = self._own_reductions[0]
        self._reduction = reduction
        self._buckets = self._make_buckets()
        self._common = [bucket.gradients.clone() for bucket in self._buckets]
        self._steps = 0
        self._since_meeting = 0
        self._interval = config.steps
        self._first_loss: float | None = None
        self._loss = torch.zeros((), dtype=torch.float64, device="cpu")
        self.num_meetings = 0
        """Number of times that parameters were averaged."""
        self.start_from_parameters()

    def _make_buckets(self) -> list[Bucket]:
        by_dtype: dict[torch.dtype, list[int]] = {}
        for place, (_, parameter) in enumerate(self._parameters):
            by_dtype.setdefault(parameter.dtype, []).append(place)
        size = self._world.size
        notes = [size + 2] + [0] * len(by_dtype)
        return [
            Bucket(places, self._parameters, num_notes=count, multiple_of=size)
            for places, count in zip(by_dtype.values(), notes, strict=False)
        ]

    @property
    def is_warming(self) -> bool:
        """Whether the next step is one of the synchronous steps at the start of training."""
        return self._steps < self._config.warm_steps

    @property
    def interval(self) -> int:
        """Number of steps from one averaging to the next."""
        return self._interval

    @torch.no_grad()
    def start_from_parameters(self) -> None:
        """Treat the current parameters, equal on all ranks, as the result of the last averaging."""
        for bucket, common in zip(self._buckets, self._common, strict=True):
            self._flatten(bucket)
            common.copy_(bucket.gradients)
        self._since_meeting = 0

    def step(self, loss: torch.Tensor | float | None = None) -> bool:
        """Count an optimizer step; return whether the ranks averaged their parameters after it.

        loss: the loss of the step on this rank; required with ``adaptive``.
        """
        was_warming = self.is_warming
        self._steps += 1
        if was_warming:
            if not self.is_warming:
                self.start_from_parameters()
            return False
        self._since_meeting += 1
        if self._config.adaptive:
            if loss is None:
                raise ConfigError("LocalSgdConfig.adaptive needs the loss of each step: step(loss)")
            self._loss += float(loss)
        return self._since_meeting >= self._interval and self._meet()

    def settle(self) -> None:
        """Average the parameters now, for example before saving.

        All ranks must call it after the same number of steps.
        """
        if not self.is_warming:
            self._meet()

    def shadow(self) -> bool:
        """Take part in the next averaging, including this rank's remaining steps, if any.

        Return False if no rank has taken any steps; all ranks are then done and have equal
        parameters.
        """
        return self._meet()

    @torch.no_grad()
    def _meet(self) -> bool:
        notes = self._summed_differences()
        size = self._world.size
        present = sum(notes[:size])
        if not present:
            return False
        for bucket, common in zip(self._buckets, self._common, strict=True):
            common.sub_(bucket.gradients.div_(present))
            bucket.gradients.copy_(common)
            parameters = [self._parameters[place][1] for place in bucket.places]
            torch._foreach_copy_(parameters, bucket.views)
        if self._at_meeting is not None:
            self._at_meeting(round(present))
        self._adapt(*notes[size:])
        self._since_meeting = 0
        self._loss.zero_()
        self.num_meetings += 1
        return True

    def _summed_differences(self) -> list[float]:
        """Fill the buckets with the sums over ranks of (last averaged - current parameters).

        Return the statistics that were summed along with them: which ranks took steps [R], the sum
        of the losses, and the number of steps.
        """
        for bucket, common in zip(self._buckets, self._common, strict=True):
            self._flatten(bucket)
            torch.sub(common, bucket.gradients, out=bucket.gradients)
        notes = self._buckets[0].notes
        notes.zero_()
        notes[self._world.rank] = float(self._since_meeting > 0)
        notes[-2] = self._loss
        notes[-1] = self._since_meeting
        if self._reduction is not None:
            with self._world.naming_lost(f"averaging of parameters after step {self._steps}"):
                for bucket in self._buckets:
                    self._reduction.start(bucket.buffer)()
        found: list[float] = notes.tolist()
        return found

    def _flatten(self, bucket: Bucket) -> None:
        parameters = [self._parameters[place][1] for place in bucket.places]
        torch._foreach_copy_(bucket.views, parameters)

    def _adapt(self, loss_sum: float, num_steps: float) -> None:
        if not self._config.adaptive:
            return
        loss = loss_sum / num_steps
        if not (math.isfinite(loss) and loss > 0):
            return  # the rule is defined only for positive losses
        if self._first_loss is None:
            self._first_loss = loss
        wanted = math.ceil(self._config.steps * math.sqrt(loss / self._first_loss))
        self._interval = min(max(wanted, 1), self._config.max_steps)

    def state_dict(self) -> dict[str, float | int | None]:
        """Return the state of the schedule; call it right after the ranks have averaged."""
        return {"steps": self._steps, "interval": self._interval, "first_loss": self._first_loss}

    def load_state_dict(self, state: Mapping[str, float | int | None]) -> None:
        """Resume from the result of ``state_dict``, with the current parameters."""
        first_loss = state["first_loss"]
        self._steps = int(state["steps"] or 0)
        self._interval = int(state["interval"] or self._config.steps)
        self._first_loss = None if first_loss is None else float(first_loss)
        self._loss.zero_()
        self.start_from_parameters()

    def close(self) -> None:
        """Stop the threads that this object started."""
        for reduction in self._own_reductions:
            reduction.close()
