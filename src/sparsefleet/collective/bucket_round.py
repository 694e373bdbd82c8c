"""The sums over ranks of the buckets of one step: started one by one, waited for together.

Letters: R ranks, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sparsefleet.collective.buckets import Bucket, NamedParameters
from sparsefleet.collective.reduction import Reduction
from sparsefleet.collective.world import World

__all__ = ["BucketRound"]


class BucketRound:
    """Buckets in the order in which they set out, the same on all ranks; dealt over reductions.

    Behind the gradients of the last bucket travel R + P notes. Not thread-safe.
    """

    def __init__(
        self,
        plan: Sequence[Sequence[int]],
        parameters: NamedParameters,
        world: World,
        reductions: Sequence[Reduction],
    ) -> None:
        """plan: places of the parameters of each bucket."""
        self._world = world
        self._reductions = reductions
        *before, last = plan
        size = world.size
        self.buckets = [Bucket(places, parameters, multiple_of=size) for places in before]
        """All buckets, in order."""
        self.buckets.append(
            Bucket(last, parameters, num_notes=size + len(parameters), multiple_of=size)
        )
        self.bucket_of = {place: b for b, places in enumerate(plan) for place in places}
        """Place of a parameter to its bucket."""
        self._waits: list[Callable[[], object]] = []
        self.num_sent = 0
        """How many of the buckets have set out."""

    @property
    def is_all_sent(self) -> bool:
        """Whether the last bucket has set out."""
        return self.num_sent == len(self.buckets)

    @torch.no_grad()
    def send_next(self, arrived: Sequence[torch.Tensor | None], state: int, what: str) -> None:
        """Has the next bucket set out with the gradients that have arrived, by place.

        state: what this rank notes of itself; what: is told if other ranks are lost.
        """
        bucket = self.buckets[self.num_sent]
        _copy_gradients(bucket.views, [arrived[place] for place in bucket.places])
        if len(bucket.notes):
            self._write_notes(bucket.notes, arrived, state)
        reduction = self._reductions[self.num_sent % len(self._reductions)]
        self.num_sent += 1
        with self._world.naming_lost(what):
            self._waits.append(reduction.start(bucket.buffer))

    def wait(self, what: str) -> tuple[list[float], list[float]]:
        """Ends the round: what each rank [R] noted of itself, on how many ranks each parameter [P]
        has a gradient. Sums are in the buckets. Leaves nothing under way, not after an error
        either."""
        failure: Exception | None = None
        for wait in self._waits:
            try:
                wait()
            except Exception as error:
                failure = failure or error
        self._waits = []
        self.num_sent = 0
        if failure is not None:
            with self._world.naming_lost(what):
                raise failure
        notes: list[float] = self.buckets[-1].notes.tolist()
        return notes[: self._world.size], notes[self._world.size :]

    def _write_notes(
        self, notes: torch.Tensor, arrived: Sequence[torch.Tensor | None], state: int
    ) -> None:
        size = self._world.size
        notes[:size].zero_()
        notes[self._world.rank] = state
        notes[size:].fill_(1)
        for place, gradient in enumerate(arrived):
            if gradient is None:
                notes[size + place] = 0


def _copy_gradients(views: list[torch.Tensor], gradients: list[torch.Tensor | None]) -> None:
    """Fills the views; where there is no gradient, with zeros."""
    there = [gradient for gradient in gradients if gradient is not None]
    if len(there) == len(views):
        torch._foreach_copy_(views, there)
        return
    for view, gradient in zip(views, gradients, strict=True):
        if gradient is None:
            view.zero_()
        else:
            view.copy_(gradient)
