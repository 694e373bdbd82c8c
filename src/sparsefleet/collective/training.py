"""Collective training on one rank: forward, backward, exchange, update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from sparsefleet.collective.buckets import LayerOf, layer_by_module
from sparsefleet.collective.gradient_exchange import GradientExchange
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.module_preparation import LossScaler, autocast_for
from sparsefleet.collective.reduction import Traffic
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.sync_batch_norm import NormGroup
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError

__all__ = ["CollectiveTraining"]

_BUCKET = 4 * 2**20
"""Minimum size of a default bucket; with smaller buckets, the calls cost more than sending the
bytes. A tenth of all gradients is Fluid's rule of thumb.
"""


class CollectiveTraining:
    """Collective training on one rank: parameters, an optimizer and a strategy.

    A rank loops over its batches and reports when it has no more; ranks may have different numbers
    of batches. Training starts from the parameters of rank 0; parameters are equal on all ranks
    after every step (with LocalSGD, after every averaging). Not thread-safe.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> training = CollectiveTraining(
    ...     model.named_parameters(), optimizer.step, World.join(), CollectiveStrategy())
    >>> for batch in torch.ones(3, 4, 2):
    ...     with training.forward():
    ...         loss = model(batch).square().mean()
    ...     training.backward(loss)
    ...     done = training.step()
    >>> training.leave()
    >>> training.num_steps
    3
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        optimizer_step: Callable[[], object],
        world: World,
        strategy: CollectiveStrategy,
        *,
        layer_of: LayerOf = layer_by_module,
        sparse_names: Collection[str] = (),
        norm_group: NormGroup | None = None,
        at_meeting: Callable[[int], object] | None = None,
    ) -> None:
        """Set up training on this rank.

        optimizer_step: applies the ``grad`` of all parameters, some of which may be None; clip
            gradients in this function. It returns False on all ranks if it found an overflow and
            applied nothing.
        sparse_names: parameters with sparse gradients.
        norm_group: the group returned by ``prepare_module``.
        at_meeting: called on every rank when LocalSGD averages the parameters, with the number of
            ranks in the average.
        """
        self._everything = list(named_parameters)
        self._parameters = [pair for pair in self._everything if pair[1].requires_grad]
        self._optimizer_step = optimizer_step
        self._world = world
        self._strategy = strategy
        self._norm_group = norm_group
        self.traffic = Traffic()
        """Counts the bytes that this rank sends."""
        self._layer_of = layer_of
        self._sparse_names = sparse_names
        self._exchange = self._connect()
        self._scaler = None if strategy.amp is None else LossScaler(strategy.amp)
        self._local: LocalSgd | None = None
        if strategy.local_sgd is not None:
            self._local = LocalSgd(
                self._parameters,
                world,
                strategy.local_sgd,
                reduction=self._exchange.reduction,
                at_meeting=at_meeting,
            )
        self._num_merged = 0
        self._phase = 0  # number of batches in this step that at least one rank had
        self._loss: torch.Tensor | None = None
        self.num_steps = 0
        """Number of optimizer steps, including those skipped because of an overflow."""
        self.num_skipped = 0
        """Number of steps skipped because of an overflow."""

    def _connect(self) -> GradientExchange:
        exchange = GradientExchange(
            self._parameters,
            self._world,
            self._strategy,
            layer_of=self._layer_of,
            sparse_names=self._sparse_names,
            default_bucket_bytes=max(sum(p.nbytes for _, p in self._parameters) // 10, _BUCKET),
            traffic=self.traffic,
        )
        exchange.attach()
        self._world.broadcast([parameter.data for _, parameter in self._everything])
        return exchange

    def reconnect(self) -> None:
        """Exchange gradients over the new connections made by `World.meet_again`.

        Starts from the parameters of rank 0 and drops the interrupted step. A rank's new process
        does not call this; it creates a new `CollectiveTraining`.
        """
        self._exchange.close()
        self._clear()
        self._exchange = self._connect()

    @property
    def scaler(self) -> LossScaler | None:
        """The loss scale and its counters; None without mixed precision."""
        return self._scaler

    @property
    def local_sgd(self) -> LocalSgd | None:
        """The LocalSGD schedule; None if ranks exchange gradients in every step."""
        return self._local

    @property
    def is_local(self) -> bool:
        """Whether this rank steps independently of the others, as in LocalSGD after the warm-up."""
        return self._is_local

    @property
    def num_merged(self) -> int:
        """Number of this rank's batches whose gradients are not yet applied."""
        return self._num_merged

    @property
    def num_present(self) -> int:
        """Number of ranks that had a batch in the last exchange of gradients."""
        return self._exchange.num_present

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Return a context manager for a forward pass in training.

        It sets up mixed precision and synchronized batch norms.
        """
        if self._norm_group is not None:
            self._norm_group.meet(is_present=True)
            self._phase += 1
        with self._giving_up_on_error(), autocast_for(self._strategy.amp, self._world.device):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the loss, a scalar tensor.

        For the last batch of a step, gradients are sent to other ranks while the remaining
        gradients are still being computed.
        """
        is_last = self._num_merged + 1 == self._strategy.gradient_merge_steps
        self._exchange.hold(not is_last or self._is_local)
        with self._giving_up_on_error():
            (loss if self._scaler is None else self._scaler.scaled(loss)).backward()  # type: ignore[no-untyped-call]
        self._num_merged += 1
        if self._local is not None:
            self._loss = loss.detach()

    def step(self) -> bool:
        """Update the parameters with the mean gradient of all ranks, unless the step is skipped.

        Returns False while batches are merged, and if the step is skipped because of an overflow.
        In that case all ranks skip the step, since an overflow on one rank makes the mean overflow.
        (With LocalSGD, each rank decides on its own.)

        Raises:
            WorkerError: other ranks gave up during the step.
            PeerLostError, DeadlineError: ranks are lost or late.
        """
        if not self._num_merged:
            raise ConfigError(
                "no backward pass in this step: call the step's backward(loss) instead of "
                "loss.backward(), since the loss may need to be scaled"
            )
        if self._num_merged < self._strategy.gradient_merge_steps:
            return False
        return self._finish_step()

    def leave(self) -> None:
        """Report that this rank has no more batches, and wait until all ranks are done.

        Until then, this rank keeps taking part in the other ranks' steps. All ranks must call it
        after their last step; their parameters are then equal.
        """
        if self._norm_group is None and self._num_merged:
            self._finish_step()
        while self._follow():
            continue

    def settle(self) -> None:
        """Make parameters equal on all ranks, for example before saving.

        All ranks must call it after the same number of steps.
        """
        if self._local is not None:
            self._local.settle()

    def _follow(self) -> bool:
        """Take part in the other ranks' next step or averaging; return False once all are done."""
        if self._norm_group is None:
            if self._is_local:
                assert self._local is not None
                return self._local.shadow()
            return self._shadow_step()
        others = self._norm_group.meet(is_present=False)
        self._phase += bool(others)
        is_full = self._phase == self._strategy.gradient_merge_steps
        if is_full or (self._phase and not others):
            if self._num_merged:
                self._finish_step()
            else:
                self._shadow_step()
        return bool(others)

    @property
    def _is_local(self) -> bool:
        return self._local is not None and not self._local.is_warming

    @property
    def _divisor(self) -> float:
        scale = 1.0 if self._scaler is None else self._scaler.scale
        merged = self._strategy.gradient_merge_steps
        return scale * (merged if self._strategy.gradient_merge_average else 1)

    def _finish_step(self) -> bool:
        try:
            self._weigh_partial_merge()
            if self._is_local:
                self._divide_own()
            else:
                self._exchange.finish(self._divisor)
        except BaseException:
            self._clear()
            raise
        return self._apply()

    def _shadow_step(self) -> bool:
        is_step = self._exchange.shadow(self._divisor)
        if is_step:
            self._apply()
        return is_step

    def _weigh_partial_merge(self) -> None:
        """Give a rank that ran out of batches before a merge was full the same weight as others."""
        wanted = self._strategy.gradient_merge_steps
        if self._num_merged < wanted and self._strategy.gradient_merge_average:
            torch._foreach_mul_(self._gradients(), wanted / self._num_merged)

    def _divide_own(self) -> None:
        gradients = self._gradients()
        if self._divisor != 1 and gradients:
            torch._foreach_div_(gradients, self._divisor)

    def _apply(self) -> bool:
        is_finite = self._is_finite()
        try:
            is_finite = is_finite and self._optimizer_step() is not False
        finally:
            self._clear()
        if self._scaler is not None:
            self._scaler.update(is_finite=is_finite)
        self.num_steps += 1
        self.num_skipped += not is_finite
        if self._local is not None:
            self._local.step(self._loss)
        return is_finite

    def _is_finite(self) -> bool:
        if self._scaler is None or not self._scaler.is_dynamic:
            return True
        sums = [gradient.sum(dtype=torch.float32) for gradient in self._gradients()]
        return not sums or bool(torch.stack(sums).isfinite().all())

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for _, p in self._parameters if p.grad is not None]

    def _clear(self) -> None:
        for _, parameter in self._parameters:
            parameter.grad = None
        self._num_merged = 0
        self._phase = 0

    @contextlib.contextmanager
    def _giving_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # With synchronized batch norms, the others may be waiting elsewhere in the step.
            if not self._is_local and self._norm_group is None:
                self._exchange.abandon()
            self._clear()
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale and LocalSGD schedule as plain numbers.

        Call it between steps and, with LocalSGD, after ``settle``.
        """
        if self._num_merged:
            raise ConfigError(
                f"CollectiveTraining.state_dict: {self._num_merged} batches are merged but not yet "
                "applied; save after a complete step"
            )
        state: dict[str, Any] = {"num_steps": self.num_steps, "num_skipped": self.num_skipped}
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        if self._local is not None:
            state["local_sgd"] = self._local.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the result of ``state_dict``.

        All ranks must call it after loading the parameters; all continue with the parameters of
        rank 0. Parts of the state that the strategy does not use are ignored.
        """
        self._world.broadcast([parameter.data for _, parameter in self._parameters])
        self.num_steps = int(state["num_steps"])
        self.num_skipped = int(state["num_skipped"])
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
        if self._local is not None:
            self._local.start_from_parameters()
            if "local_sgd" in state:
                self._local.load_state_dict(state["local_sgd"])

    def close(self) -> None:
        """Remove the hooks from the parameters and stop the background threads."""
        self._exchange.close()
