"""Batch normalization with the statistics of all ranks' batches.

torch's own SyncBatchNorm rejects CPU tensors; this module accepts them. In shapes, B is the number
of examples on a rank, C the number of channels, and R the number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefleet.collective.world import World
from sparsefleet.errors import ShapeError

__all__ = ["NormGroup", "SyncBatchNorm", "convert_batch_norms", "normalize_together"]


class NormGroup:
    """The ranks whose batches are normalized together, namely the ranks that still have data.

    All ranks of the world must create a group, and call ``meet`` the same number of times. Copies
    of a module share one group.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        everyone = tuple(range(world.size))
        self._everyone = world.shared_group(everyone)
        self.present = everyone
        """The participating ranks, in ascending order."""
        self._group = self._everyone

    def meet(self, *, is_present: bool) -> tuple[int, ...]:
        """Announce whether this rank has another batch; return the ranks that have one.

        The result becomes ``present``. Call it before each forward pass in training.
        """
        if self._everyone is None:
            self.present = (0,) if is_present else ()
            return self.present
        world = self._world
        states = torch.zeros(world.size, device=world.device)
        states[world.rank] = float(is_present)
        with world.naming_lost("meeting before a forward pass with sync_batch_norm"):
            dist.all_reduce(states, group=self._everyone)
        present = tuple(rank for rank, state in enumerate(states.tolist()) if state)
        self.present, self._group = present, world.shared_group(present) if present else None
        return present

    def __deepcopy__(self, memo: dict[int, Any]) -> NormGroup:
        return self

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all participating ranks; all have the same shape."""
        if self._group is None:
            return [own]
        parts = [torch.empty_like(own) for _ in self.present]
        with self._world.naming_lost("sync_batch_norm"):
            dist.all_gather(parts, own, group=self._group)
        return parts

    def add_up(self, sums: torch.Tensor) -> None:
        """Replace ``sums`` with the sum over the participating ranks."""
        if self._group is not None:
            with self._world.naming_lost("gradients of sync_batch_norm"):
                dist.all_reduce(sums, group=self._group)


class _NormalizeTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        norm_group: NormGroup | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, var, count = _common_statistics(x, norm_group)
        inverse = torch.rsqrt(var + eps)
        normal = (x.float() - _channels(mean, x)) * _channels(inverse, x)
        y = normal * _channels(weight.float(), x) + _channels(bias.float(), x)
        ctx.save_for_backward(normal, weight, inverse, count)
        ctx.norm_group = norm_group
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        normal, weight, inverse, count = ctx.saved_tensors
        dims = _all_but_channels(dy)
        wide = dy.float()
        sums = torch.stack([wide.sum(dims), (wide * normal).sum(dims)])
        d_bias, d_weight = sums.clone()
        if ctx.norm_group is not None:
            ctx.norm_group.add_up(sums)
        mean_dy, mean_dy_normal = sums / count
        dx = wide - _channels(mean_dy, dy) - normal * _channels(mean_dy_normal, dy)
        dx = dx * _channels(weight.float() * inverse, dy)
        return dx.to(dy.dtype), d_weight.to(weight.dtype), d_bias.to(weight.dtype), None, None


def normalize_together(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float = 1e-5,
    norm_group: NormGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalize x [B, C, ...] by channel over the batches of all ranks of ``norm_group``.

    Returns y in the shape of x and, without gradient: mean [C], population variance [C], and the
    number of elements [] per channel over all ranks. All ranks of the group must call it, and
    ``backward``, in the same order; B may differ between ranks and may be 0. If norm_group is None,
    only this rank's batch is used.

    >>> y, mean, var, count = normalize_together(
    ...     torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.zeros(1), eps=0.0)
    >>> y.flatten(), mean, var, count
    (tensor([-1.,  1.]), tensor([2.]), tensor([1.]), tensor(2.))
    """
    if x.dim() < 2:
        raise ShapeError(f"batch norm needs [B, C, ...], got shape {tuple(x.shape)}")
    y, mean, var, count = _NormalizeTogether.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, eps, norm_group
    )
    return y, mean, var, count


def _common_statistics(
    x: torch.Tensor, norm_group: NormGroup | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean, variance and count over ranks, bit-identical on all ranks.

    They are combined from each rank's mean and variance (Chan et al., 1979); sums of squares would
    lose precision."""
    dims = _all_but_channels(x)
    wide = x.float()
    count = wide.new_tensor([x.numel() // max(1, x.shape[1])])
    mean = wide.sum(dims) / count.clamp(min=1)
    spread = (wide - _channels(mean, x)).square().sum(dims)
    own = torch.cat([mean, spread, count])
    parts = [own] if norm_group is None else norm_group.gather(own)
    sizes = [len(mean), len(mean), 1]
    means, spreads, counts = torch.split_with_sizes(torch.stack(parts), sizes, dim=1)
    total = counts.sum().clamp(min=1)
    mean = (means * counts).sum(0) / total
    spread = (spreads + counts * (means - mean).square()).sum(0)
    return mean, spread / total, total


def _all_but_channels(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return values [C] in a shape that broadcasts with x [B, C, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm*`` that trains with the statistics of all ranks of a ``NormGroup``.

    Parameters, buffers and their names match torch's; running statistics are equal on all ranks.
    Nothing is exchanged in evaluation.
    """

    def __init__(self, norm: _BatchNorm, norm_group: NormGroup) -> None:
        """Use the parameters and buffers of ``norm`` directly, not copies."""
        super().__init__(norm.num_features, norm.eps, norm.momentum, affine=False)
        self.affine = norm.affine
        self.track_running_stats = norm.track_running_stats
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.norm_group = norm_group
        """The ranks whose batches are normalized together."""
        self.train(norm.training)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ShapeError(f"batch norm needs [B, C, ...], got shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        weight = input.new_ones(self.num_features) if self.weight is None else self.weight
        bias = input.new_zeros(self.num_features) if self.bias is None else self.bias
        y, mean, var, count = normalize_together(
            input, weight, bias, eps=self.eps, norm_group=self.norm_group
        )
        if self.track_running_stats:
            self._follow(mean, var * (count / (count - 1).clamp(min=1)))
        return y

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, unbiased_var: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        share = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased_var.to(self.running_var.dtype), share)


def convert_batch_norms(module: nn.Module, norm_group: NormGroup) -> nn.Module:
    """Replace each batch norm with a ``SyncBatchNorm`` that keeps the parameter objects.

    Returns ``module`` itself, modified in place, unless ``module`` is a batch norm.
    """
    for inner in module.modules():
        if isinstance(inner, SyncBatchNorm):
            inner.norm_group = norm_group
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        return SyncBatchNorm(module, norm_group)
    made: dict[nn.Module, SyncBatchNorm] = {}
    for owner in list(module.modules()):
        for name, child in owner._modules.items():
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                if child not in made:
                    made[child] = SyncBatchNorm(child, norm_group)
                setattr(owner, name, made[child])
    return module
