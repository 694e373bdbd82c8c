"""The mean over ranks of gradients, on its way while the backward pass still runs.

Letters: R ranks, P parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

import torch
from torch.utils.hooks import RemovableHandle

from sparsefleet.collective.agreement import require_agreement
from sparsefleet.collective.bucket_round import BucketRound
from sparsefleet.collective.buckets import LayerOf, layer_by_module, plan_buckets
from sparsefleet.collective.reduction import Reduction, make_reductions
from sparsefleet.collective.row_gather import gather_gradient
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

    All ranks have the same bits afterwards, on CPUs whatever the buckets and rings are. A
    parameter without a gradient on some ranks counts as zeros there; without one on all, it has
    none afterwards. Not thread-safe.

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
        sparse_names: Collection[str] = (),
        default_bucket_bytes: int = 0,
        traffic: Traffic | None = None,
    ) -> None:
        """All ranks must make it with the same arguments.

        layer_of: the layer of a parameter, by its name. sparse_names: parameters [K, D] whose
        gradients are sparse; they travel as rows, not in buckets. default_bucket_bytes: where a
        bucket is full if the strategy leaves it open; 0 for a bucket a layer.
        """
        self._parameters = list(named_parameters)
        self._places = {name: place for place, (name, _) in enumerate(self._parameters)}
        if len(self._places) != len(self._parameters) or not self._parameters:
            names = [name for name, _ in self._parameters]
            raise ConfigError(f"GradientExchange needs parameters of different names, got {names}")
        self.traffic = traffic or Traffic()
        """What this rank has sent."""
        self._world = world
        self._sparse = sorted(self._places[name] for name in sparse_names)
        plan = plan_buckets(
            self._parameters, strategy, layer_of, default_bytes=default_bucket_bytes
        )
        plan = [[place for place in places if place not in self._sparse] for places in plan]
        plan = [places for places in plan if places] or [[]]
        require_agreement(
            world,
            {
                "parameters they train": [(n, p.dtype, p.shape) for n, p in self._parameters],
                "CollectiveStrategy": strategy,
                "FLAGS_fuse_parameter_* of the environment": plan,
            },
        )
        self._reductions = make_reductions(world, strategy, self.traffic)
        self._round: BucketRound | None = None
        if world.size > 1:
            self._make_round(plan)
        self._hooks: list[RemovableHandle] = []
        self._is_held = False
        self._is_broken = False
        self._step = 0
        self.num_present = 0
        """Ranks that took part in the last step with gradients."""
        self._results: list[torch.Tensor | None] = [None] * len(self._parameters)
        self._begin_step()

    def _make_round(self, plan: list[list[int]]) -> None:
        self._round = BucketRound(plan, self._parameters, self._world, self._reductions)

    def _begin_step(self) -> None:
        self._arrived: list[torch.Tensor | None] = [None] * len(self._parameters)
        buckets = self._round.buckets if self._round is not None else []
        self._missing = [len(bucket.places) for bucket in buckets]
        self._full: list[int] = []  # buckets in the order in which they filled

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
        self._arrived[place] = gradient
        if self._round is None:
            return
        bucket = self._round.bucket_of.get(place)
        if gradient.is_sparse != (bucket is None):
            raise ConfigError(
                f"parameter '{self._parameters[place][0]}' has a "
                f"{'sparse' if gradient.is_sparse else 'dense'} gradient: sparse_names must name "
                "those with sparse gradients, and no others"
            )
        if bucket is not None:
            self._missing[bucket] -= 1
            if not self._missing[bucket]:
                self._full.append(bucket)
                self._send_full(self._round)

    def _send_full(self, round_: BucketRound) -> None:
        # The last bucket says whether this rank comes to the end of the step, so it stays for that.
        while round_.num_sent < len(self._missing) - 1 and not self._missing[round_.num_sent]:
            self._send_next(round_, _PRESENT)

    def _send_next(self, round_: BucketRound, state: int) -> None:
        try:
            round_.send_next(self._arrived, state, self._what)
        except Exception:
            self._is_broken = True
            raise

    @property
    def _what(self) -> str:
        return f"all-reduce of gradients, step {self._step}"

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
        if any(gradient is not None for gradient in self._arrived):
            raise ConfigError("GradientExchange.shadow: this rank has gradients; call finish")
        return self._end_step(_ABSENT, divisor) > 0

    def abandon(self) -> None:
        """Gives up a step after an error: other ranks are told in their ``finish``, not left
        waiting. Returns when nothing is under way any more."""
        if self._round is not None:
            try:
                while not (self._is_broken or self._round.is_all_sent):
                    self._send_next(self._round, _FAILED)
                self._round.wait(self._what)
            except Exception:
                self._is_broken = True  # the error that made the caller give up is the one to tell
        self._begin_step()
        self._step += 1

    def gradient(self, name: str) -> torch.Tensor | None:
        """The result of the last step for one parameter; None if no rank had a gradient of it."""
        return self._results[self._places[name]]

    def close(self) -> None:
        """Takes the hooks off, ends threads and connections. Idempotent."""
        self.detach()
        is_idle = not self._is_broken and (self._round is None or not self._round.num_sent)
        self._is_broken = True
        while self._reductions:
            reduction = self._reductions.pop()
            reduction.close()
            # Where calls are under way, freeing would wait for ranks that may never answer.
            for group in reduction.groups() if is_idle else ():
                self._world.free_group(group)

    def _end_step(self, state: int, divisor: float) -> int:
        if self._is_broken:
            raise InternalError("this exchange failed before, or is closed; make a new one")
        try:
            if state == _PRESENT:
                self._take_left_over()
            if self._round is None:
                return self._end_alone(state, divisor)
            return self._end_together(self._round, state, divisor)
        except WorkerError:
            raise
        except Exception:
            self._is_broken = True
            raise
        finally:
            self._begin_step()
            self._step += 1

    def _take_left_over(self) -> None:
        """Gradients of parameters which only earlier ones of several merged batches used."""
        if self._hooks and any(gradient is None for gradient in self._arrived):
            for place, (_, parameter) in enumerate(self._parameters):
                if self._arrived[place] is None and parameter.grad is not None:
                    self._arrive(place, parameter.grad)

    def _end_alone(self, state: int, divisor: float) -> int:
        for gradient in self._arrived:
            if gradient is not None and divisor != 1:
                gradient.div_(divisor)
        self._hand_out(self._arrived)
        self.num_present = int(state == _PRESENT)
        return self.num_present

    def _end_together(self, round_: BucketRound, state: int, divisor: float) -> int:
        while not round_.is_all_sent:
            self._send_next(round_, state)
        states, uses = round_.wait(self._what)
        failed = [rank for rank, found in enumerate(states) if found == _FAILED]
        if failed:
            cause = RuntimeError(f"gave up in step {self._step}; its own error says why")
            raise WorkerError(dict.fromkeys(failed, cause))
        present = self.num_present = states.count(_PRESENT)
        results: list[torch.Tensor | None] = [None] * len(self._parameters)
        if present:
            divisor *= present
            if divisor != 1:
                torch._foreach_div_([bucket.gradients for bucket in round_.buckets], divisor)
            for bucket in round_.buckets:
                for place, view in zip(bucket.places, bucket.views, strict=True):
                    results[place] = view if uses[place] else None
            for place in self._sparse:
                results[place] = self._gathered(place, divisor) if uses[place] else None
        self._hand_out(results)
        if not self._step:
            self._learn_order(round_)
        return present

    def _gathered(self, place: int, divisor: float) -> torch.Tensor:
        gradient, parameter = self._arrived[place], self._parameters[place][1]
        return gather_gradient(self._world, gradient, parameter, traffic=self.traffic) / divisor

    def _hand_out(self, results: list[torch.Tensor | None]) -> None:
        self._results = results
        if self._hooks:
            for (_, parameter), result in zip(self._parameters, results, strict=True):
                parameter.grad = result

    def _learn_order(self, round_: BucketRound) -> None:
        """Buckets set out from now on in the order in which they filled on rank 0 in the first
        step, so that none waits for one that fills later."""
        others = [bucket for bucket in range(len(self._missing)) if bucket not in self._full]
        order = torch.tensor(self._full + others, device=self._world.device)
        self._world.broadcast([order])
        learned: list[int] = order.tolist()
        if learned != sorted(learned):
            self._make_round([round_.buckets[bucket].places for bucket in learned])
