"""Averages gradients over ranks while the backward pass is still running.

In shapes, R is the number of ranks and P the number of parameters.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping

import torch
from torch.utils.hooks import RemovableHandle

from sparsefleet.collective.buckets import BucketRound, LayerOf, layer_by_module, plan_buckets
from sparsefleet.collective.reduction import Reduction, Traffic, gather_gradient, make_reductions
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError, InternalError, ShapeError, WorkerError

__all__ = ["GradientExchange", "require_agreement"]

_DIGEST_BYTES = 32
_ABSENT, _PRESENT, _FAILED = 0, 1, 2


def require_agreement(world: World, facts: Mapping[str, object]) -> None:
    """Raise ConfigError on all ranks if `facts` differ between ranks. All ranks must call it.

    facts: descriptions of the settings that must agree, with this rank's values, which are compared
        by their repr.

    >>> require_agreement(World.join(), {"number of rings": 2})
    """
    digests = [hashlib.sha256(repr(value).encode()).digest() for value in facts.values()]
    gathered = world.all_gather_bytes(b"".join(digests))
    for place, what in enumerate(facts):
        part = slice(place * _DIGEST_BYTES, (place + 1) * _DIGEST_BYTES)
        for rank, theirs in enumerate(gathered):
            if theirs[part] != gathered[0][part]:
                raise ConfigError(
                    f"rank {rank} and rank 0 differ in the {what}, which must match on all ranks"
                )


class GradientExchange:
    """Averages gradients over the ranks that took part; sends each bucket as soon as it is full.

    In each step, gradients arrive (through ``ready``, or through the hooks that ``attach``
    installs), then ranks with data call ``finish`` and ranks without data call ``shadow``. A bucket
    is sent once it is complete and all buckets before it have been sent, so ranks agree on the
    order. Notes after the last bucket say which ranks took part and which parameters were used.

    Afterwards, the gradients are bit-identical on all ranks; on CPUs, they do not depend on the
    number of buckets or rings. If a parameter has a gradient on only some ranks, its gradient
    counts as zero on the others; if it has a gradient on no rank, it has none afterwards. Not
    thread-safe.

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
        """Create an exchange. All ranks must create it with the same arguments.

        layer_of: returns the layer of a parameter name.
        sparse_names: parameters [K, D] with sparse gradients, which are sent as rows instead of in
            buckets.
        default_bucket_bytes: the size of a full bucket if the strategy does not set it; 0 means one
            bucket per layer.
        """
        self._parameters = list(named_parameters)
        self._places = {name: place for place, (name, _) in enumerate(self._parameters)}
        if len(self._places) != len(self._parameters) or not self._parameters:
            names = [name for name, _ in self._parameters]
            raise ConfigError(f"GradientExchange needs parameters with unique names, got {names}")
        self.traffic = traffic or Traffic()
        """Counts the bytes that this rank sends."""
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
        """Number of ranks that had gradients in the last step."""
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
        """The reduction over ranks, for use between steps; None for a single rank."""
        return self._reductions[0] if self._reductions else None

    def attach(self) -> None:
        """Install hooks that pass gradients to ``ready`` as ``backward`` computes them.

        From then on, ``finish`` and ``shadow`` also put the mean into ``parameter.grad``.
        """
        self.detach()
        for place, (name, parameter) in enumerate(self._parameters):
            if not (parameter.is_leaf and parameter.requires_grad):
                raise ConfigError(
                    f"parameter '{name}' gets no gradient from backward(): leave it out, or set "
                    "requires_grad=True"
                )
            hook = functools.partial(self._take_gradient_of, place)
            self._hooks.append(
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            )

    def detach(self) -> None:
        """Remove the hooks; later steps do not change ``parameter.grad``."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def hold(self, is_held: bool = True) -> None:
        """Suspend the hooks inside the ``with`` block, so gradients accumulate on this rank."""
        self._is_held = is_held

    def _take_gradient_of(self, place: int, parameter: torch.Tensor) -> None:
        if not self._is_held and parameter.grad is not None:
            self._arrive(place, parameter.grad)

    def ready(self, name: str, gradient: torch.Tensor) -> None:
        """Submit the gradient of a parameter; do not modify the gradient before ``finish``."""
        place = self._places.get(name)
        if place is None:
            raise ConfigError(
                f"'{name}' is not one of the {len(self._places)} exchanged parameters"
            )
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
                "backward once per step, or set CollectiveStrategy.gradient_merge_steps"
            )
        self._arrived[place] = gradient
        if self._round is None:
            return
        bucket = self._round.bucket_of.get(place)
        if gradient.is_sparse != (bucket is None):
            raise ConfigError(
                f"parameter '{self._parameters[place][0]}' has a "
                f"{'sparse' if gradient.is_sparse else 'dense'} gradient: sparse_names must list "
                "exactly the parameters with sparse gradients"
            )
        if bucket is not None:
            self._missing[bucket] -= 1
            if not self._missing[bucket]:
                self._full.append(bucket)
                self._send_full(self._round)

    def _send_full(self, round_: BucketRound) -> None:
        # The last bucket reports whether this rank reaches the end of the step, so it waits for
        # that.
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
        """Wait for all ranks; return how many took part.

        Gradients are then sums over ranks, divided by the number of ranks that took part and by
        ``divisor``. They are views of the exchange's memory, valid until the next gradients arrive.

        Raises:
            WorkerError: the named ranks gave up during the step. Nothing is pending, so the next
                step may start.
            PeerLostError, DeadlineError: ranks are lost or late. The exchange is broken.
        """
        return self._end_step(_PRESENT, divisor)

    def shadow(self, divisor: float = 1.0) -> bool:
        """Take part in a step without gradients.

        Return False if no rank had gradients, which means that all ranks are done. If some had,
        gradients are available as after ``finish``, so this rank can make the same update.
        """
        if any(gradient is not None for gradient in self._arrived):
            raise ConfigError("GradientExchange.shadow: this rank has gradients; call finish")
        return self._end_step(_ABSENT, divisor) > 0

    def abandon(self) -> None:
        """Give up a step after an error, so that ``finish`` raises an error on other ranks.

        Returns when nothing is pending.
        """
        if self._round is not None:
            try:
                while not (self._is_broken or self._round.is_all_sent):
                    self._send_next(self._round, _FAILED)
                self._round.wait(self._what)
            except Exception:
                self._is_broken = True  # the error that made the caller give up is more important
        self._begin_step()
        self._step += 1

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return a parameter's averaged gradient from the last step; None if no rank had one."""
        return self._results[self._places[name]]

    def close(self) -> None:
        """Remove the hooks, stop the threads and close the connections. Idempotent."""
        self.detach()
        is_idle = not self._is_broken and (self._round is None or not self._round.num_sent)
        self._is_broken = True
        while self._reductions:
            reduction = self._reductions.pop()
            reduction.close()
            # With pending calls, freeing would wait for ranks that may never answer.
            for group in reduction.groups() if is_idle else ():
                self._world.free_group(group)

    def _end_step(self, state: int, divisor: float) -> int:
        if self._is_broken:
            raise InternalError("this exchange has failed or is closed; create a new one")
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
        """Submit the gradients of parameters that only earlier batches of the merged step used."""
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
            cause = RuntimeError(f"gave up in step {self._step}; see its own error")
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
        """From now on, send buckets in the order in which they filled on rank 0 in the first step.

        No bucket then has to wait for a bucket that fills later.
        """
        others = [bucket for bucket in range(len(self._missing)) if bucket not in self._full]
        order = torch.tensor(self._full + others, device=self._world.device)
        self._world.broadcast([order])
        learned: list[int] = order.tolist()
        if learned != sorted(learned):
            self._make_round([round_.buckets[bucket].places for bucket in learned])
