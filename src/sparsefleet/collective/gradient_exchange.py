"""The mean over ranks of gradients, on its way while the backward pass still runs.

Letters: R ranks, P parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.utils.hooks import RemovableHandle

from sparsefleet.collective.buckets import Bucket, LayerOf, layer_by_module, plan_buckets
from sparsefleet.collective.reduction import Reduction, make_reductions
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.traffic import Traffic
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError, InternalError, ShapeError, WorkerError

__all__ = ["GradientExchange"]

_ABSENT, _PRESENT, _FAILED = 0, 1, 2


class GradientExchange:
    """Buckets of gradients, summed over ranks as they fill and divided by who took part.

    Each step is: gradients arrive (by the hooks of ``attach``, or by ``ready``), then ``finish``
    on ranks with data, ``shadow`` on ranks without. A bucket sets out when its last gradient is
    there and all buckets before it have set out, so that ranks agree on the order. What says who
    takes part, and which parameters were used, travels behind the last bucket.

    All ranks have the same bits afterwards, whatever the buckets and rings are. A parameter
    without a gradient on some ranks counts as zeros there; without one on all, it has none
    afterwards. Not thread-safe.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> exchange = GradientExchange([("weight", weight)], World.join(), CollectiveStrategy())
    >>> exchange.ready("weight", torch.tensor([2.0, 4.0]))
    >>> exchange.finish(), exchange.gradient("weight")
    (1, tensor([2., 4.]))
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        world: World,
        strategy: CollectiveStrategy,
        *,
        layer_of: LayerOf = layer_by_module,
        traffic: Traffic | None = None,
    ) -> None:
        """All ranks must make it with the same parameters and strategy, in the same order."""
        self._parameters = list(named_parameters)
        self._places = {name: place for place, (name, _) in enumerate(self._parameters)}
        if len(self._places) != len(self._parameters) or not self._parameters:
            names = [name for name, _ in self._parameters]
            raise ConfigError(f"GradientExchange needs parameters of different names, got {names}")
        self.traffic = traffic or Traffic()
        """What this rank has sent."""
        self._world = world
        self._reductions = make_reductions(world, strategy, self.traffic)
        plan = plan_buckets(self._parameters, strategy, layer_of)
        self._buckets = self._make_buckets(plan) if world.size > 1 else []
        self._bucket_of = {place: b for b, places in enumerate(plan) for place in places}
        self._hooks: list[RemovableHandle] = []
        self._is_held = False
        self._is_broken = False
        self._step = 0
        self._results: list[torch.Tensor | None] = [None] * len(self._parameters)
        self._begin_step()

    def _make_buckets(self, plan: list[list[int]]) -> list[Bucket]:
        size = self._world.size
        *before, last = plan
        made = [Bucket(places, self._parameters, multiple_of=size) for places in before]
        num_notes = size + len(self._parameters)
        made.append(Bucket(last, self._parameters, num_notes=num_notes, multiple_of=size))
        return made

    def _begin_step(self) -> None:
        self._arrived: list[torch.Tensor | None] = [None] * len(self._parameters)
        self._missing = [len(bucket.places) for bucket in self._buckets]
        self._num_sent = 0
        self._waits: list[Callable[[], object]] = []

    @property
    def reduction(self) -> Reduction | None:
        """What sums over ranks, for use between steps; None for a rank alone."""
        return self._reductions[0] if self._reductions else None

    def attach(self) -> None:
        """Has gradients arrive by themselves as ``backward`` leaves them in ``parameter.grad``.

        From then on ``finish`` and ``shadow`` leave the mean in ``parameter.grad`` too.
        """
        self.detach()
        for place, (name, parameter) in enumerate(self._parameters):
            if not (parameter.is_leaf and parameter.requires_grad):
                raise ConfigError(
                    f"parameter '{name}' gets no gradient from backward(): leave it out, or set "
                    "requires_grad"
                )
            hook = functools.partial(self._take_gradient_of, place)
            self._hooks.append(
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            )

    def detach(self) -> None:
        """Takes the hooks off; ``parameter.grad`` is left alone from then on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def hold(self, is_held: bool = True) -> None:
        """While held, the hooks do nothing: gradients add up on this rank alone."""
        self._is_held = is_held

    def _take_gradient_of(self, place: int, parameter: torch.Tensor) -> None:
        if not self._is_held and parameter.grad is not None:
            self._arrive(place, parameter.grad)

    def ready(self, name: str, gradient: torch.Tensor) -> None:
        """Hands in the gradient of a parameter; it is to be left alone until ``finish``."""
        place = self._places.get(name)
        if place is None:
            raise ConfigError(f"'{name}' is none of the {len(self._places)} parameters exchanged")
        wanted = self._parameters[place][1].shape
        if gradient.shape != wanted:
            raise ShapeError(
                f"the gradient of '{name}' must have shape {tuple(wanted)}, "
                f"got {tuple(gradient.shape)}"
            )
        self._arrive(place, gradient)

    def _arrive(self, place: int, gradient: torch.Tensor) -> None:
        if self._arrived[place] is not None:
            raise ConfigError(
                f"parameter '{self._parameters[place][0]}' got a second gradient in one step: call "
                "backward once a step, or set CollectiveStrategy.gradient_merge_steps"
            )
        if gradient.is_sparse:
            raise ConfigError(
                f"parameter '{self._parameters[place][0]}' has a sparse gradient, which cannot "
                "travel in a bucket: make it dense, or exchange it by gather_rows"
            )
        self._arrived[place] = gradient
        if self._buckets:
            bucket = self._bucket_of[place]
            self._missing[bucket] -= 1
            while self._num_sent < len(self._buckets) and not self._missing[self._num_sent]:
                self._send_next(_PRESENT)

    def finish(self, divisor: float = 1.0) -> int:
        """Waits for all ranks; then gradients are sums over ranks, divided by how many took part
        and by ``divisor``. Returns how many took part.

        Gradients are views of the exchange's memory, good until the next ones arrive.

        Raises:
            WorkerError: ranks gave up in the middle of the step; they are named. Nothing is left
                under way: the next step may begin.
            PeerLostError, DeadlineError: ranks are gone or did not come. The exchange is broken.
        """
        return self._end_step(_PRESENT, divisor)

    def shadow(self, divisor: float = 1.0) -> bool:
        """Takes part in a step with nothing. False if no rank had anything: then all are done.

        Otherwise gradients are there as after ``finish``, for the same update as on other ranks.
        """
        if self._num_sent or any(gradient is not None for gradient in self._arrived):
            raise ConfigError("GradientExchange.shadow: this rank has gradients; call finish")
        return self._end_step(_ABSENT, divisor) > 0

    def abandon(self) -> None:
        """Gives up a step after an error: other ranks are told in their ``finish``, not left
        waiting. Returns when nothing is under way any more."""
        if self._is_broken or not self._buckets:
            self._begin_step()
            return
        try:
            self._complete(_FAILED)
        except Exception:
            self._is_broken = True  # the error that made the caller give up is the one to tell
        self._begin_step()

    def gradient(self, name: str) -> torch.Tensor | None:
        """The result of the last step for one parameter; None if no rank had a gradient of it."""
        return self._results[self._places[name]]

    def close(self) -> None:
        """Takes the hooks off and ends threads."""
        self.detach()
        for reduction in self._reductions:
            reduction.close()

    def _end_step(self, state: int, divisor: float) -> int:
        if self._is_broken:
            raise InternalError("this exchange failed before; make a new one")
        if not self._buckets:
            return self._end_step_alone(state, divisor)
        try:
            notes = self._complete(state)
        except Exception:
            self._is_broken = True
            raise
        finally:
            self._begin_step()
            self._step += 1
        states, uses = notes[: self._world.size], notes[self._world.size :]
        failed = [rank for rank, found in enumerate(states) if found == _FAILED]
        if failed:
            cause = RuntimeError(f"gave up in step {self._step - 1}; its own error says why")
            raise WorkerError(dict.fromkeys(failed, cause))
        present = states.count(_PRESENT)
        if present * divisor not in (0, 1):
            torch._foreach_div_([bucket.gradients for bucket in self._buckets], present * divisor)
        for bucket in self._buckets:
            for place, view in zip(bucket.places, bucket.views, strict=True):
                self._results[place] = view if uses[place] else None
        self._hand_out()
        return present

    def _end_step_alone(self, state: int, divisor: float) -> int:
        if state == _PRESENT and self._hooks:
            for place, (_, parameter) in enumerate(self._parameters):
                self._arrived[place] = parameter.grad
        self._results = self._arrived
        there = [gradient for gradient in self._arrived if gradient is not None]
        if divisor != 1 and there:
            torch._foreach_div_(there, divisor)
        self._begin_step()
        self._hand_out()
        return int(state == _PRESENT)

    def _hand_out(self) -> None:
        if self._hooks:
            for (_, parameter), result in zip(self._parameters, self._results, strict=True):
                parameter.grad = result

    def _complete(self, state: int) -> list[float]:
        """Sends what has not been sent, waits for everything; the notes of all ranks."""
        if state == _PRESENT:
            self._take_left_over()
        while self._num_sent < len(self._buckets):
            self._send_next(state)
        failure: Exception | None = None
        for wait in self._waits:  # all of them, so that none is left under way
            try:
                with self._world.naming_lost(f"all-reduce of gradients, step {self._step}"):
                    wait()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        notes: list[float] = self._buckets[-1].notes.tolist()
        return notes

    def _take_left_over(self) -> None:
        """Gradients of parameters that only earlier of several merged batches used."""
        if self._hooks and any(self._missing[self._num_sent :]):
            for place, (_, parameter) in enumerate(self._parameters):
                if self._arrived[place] is None and parameter.grad is not None:
                    self._arrive(place, parameter.grad)

    def _send_next(self, state: int) -> None:
        bucket = self._buckets[self._num_sent]
        gradients = [self._arrived[place] for place in bucket.places]
        with torch.no_grad():
            _copy_gradients(bucket.views, gradients)
            if len(bucket.notes):
                self._write_notes(bucket.notes, state)
        reduction = self._reductions[self._num_sent % len(self._reductions)]
        self._num_sent += 1
        with self._world.naming_lost(f"all-reduce of gradients, step {self._step}"):
            self._waits.append(reduction.start(bucket.buffer))

    def _write_notes(self, notes: torch.Tensor, state: int) -> None:
        """[R] what each rank is, [P] whether it used each parameter."""
        size = self._world.size
        notes[:size].zero_()
        notes[self._world.rank] = state
        used = [float(gradient is not None) for gradient in self._arrived]
        notes[size:].copy_(torch.tensor(used))


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
