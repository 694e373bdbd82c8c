"""What the ranks of a collective job do together: see `fluid.collective`.

Letters: R ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsefleet.collective.sync_batch_norm import normalize_together
from sparsefleet.fluid.collective.collective_role import collective_role
from sparsefleet.fluid.collective.ranks import join_ranks, present_ranks
from sparsefleet.fluid.collective.tensor_exchange import (
    all_gathered,
    all_reduced,
    broadcast_values,
    reduce_scattered,
)
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.normalization import batch_norm
from sparsefleet.fluid.ops.windows import channels_first, channels_last
from sparsefleet.fluid.sparse_parameter import SparseParameter

Tensor = torch.Tensor

_REDUCTIONS = ("sum", "prod", "max", "min")  # by Fluid's numbers


def _no_shapes(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings  # outputs are the inputs, changed
    return []


# -- operators that programs name -----------------------------------------------------------------


def _reduction(kind: str) -> Callable[[Tensor], Tensor]:
    def reduce(x: Tensor) -> Tensor:
        return x.clone() if x.is_meta else all_reduced(present_ranks(), x, kind)

    return reduce


for _kind in _REDUCTIONS:
    op(f"c_allreduce_{_kind}", "X", lod="none")(_reduction(_kind))


@op("allreduce", "X", lod="none")
def allreduce(x: Tensor, *, reduce_type: int = 0) -> Tensor:
    """The sum, product, maximum or minimum over all ranks."""
    return _reduction(_REDUCTIONS[reduce_type])(x)


@op("c_allgather", "X", lod="none")
def c_allgather(x: Tensor, *, nranks: int) -> Tensor:
    """The rows of all ranks: [R * N, ...] of [N, ...]."""
    if x.is_meta:
        return torch.cat([x] * nranks)
    return all_gathered(present_ranks().of_size(nranks, "c_allgather"), x)


@op("c_reducescatter", "X", lod="none")
def c_reducescatter(x: Tensor, *, nranks: int) -> Tensor:
    """This rank's rows of the sum over all: [N, ...] of [R * N, ...]."""
    if x.is_meta:
        return x[: len(x) // nranks].clone()
    return reduce_scattered(present_ranks().of_size(nranks, "c_reducescatter"), x)


@op("broadcast", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
@op("c_broadcast", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
def c_broadcast(values: list[Tensor | SparseParameter], *, root: int = 0) -> list[list[Any]]:
    """What rank `root` has."""
    return [broadcast_values(present_ranks(), values, root)]


@op("c_sync_calc_stream", "X*", "Out*", lod="none", infer=_no_shapes)
@op("c_sync_comm_stream", "X*", "Out*", lod="none", infer=_no_shapes)
def c_sync_stream(values: list[Any]) -> list[list[Any]]:
    """The same: a run waits for what it needs anyway."""
    return [values]


@op("c_comm_init", "X?", "", lod="none", has_effect=True, infer=_no_shapes)
def c_comm_init(x: Any, *, rank: int, nranks: int, endpoints: list[str]) -> list[Any]:
    """Meets the other ranks."""
    del x
    join_ranks(rank, nranks, endpoints)
    return []


# -- operators of programs that train together --------------------------------------------------


@op("watch_gradients", "X*", "", lod="none", has_effect=True, infer=_no_shapes)
def watch_gradients(values: list[Tensor], *, parameters: list[str]) -> list[Any]:
    """From now on gradients of these set out as soon as they are computed."""
    collective_role("watch_gradients").watch(parameters, values)
    return []


@op("mean_over_ranks", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
def mean_over_ranks(
    gradients: list[Any], *, parameters: list[str], tables: list[str]
) -> list[list[Any]]:
    """Gradients of all ranks: of dense parameters, then of rows of tables, (keys, values) each."""
    return [collective_role("mean_over_ranks").exchange(parameters, tables, gradients)]


@op("average_over_ranks", "Param* Loss?", "ParamOut*", lod="none", in_place=True)
def average_over_ranks(values: list[Tensor], loss: Tensor | None, *, parameters: list[str]) -> None:
    """Parameters after a step of local SGD; in the steps between two meetings nothing."""
    collective_role("average_over_ranks").average(parameters, values, loss)


@op("sync_batch_norm", "X Scale Bias Mean Variance", "Y MeanOut VarianceOut")
def sync_batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: str = "NCHW",
) -> list[Tensor]:
    """`batch_norm` over the batches of all ranks that have one."""
    if is_test or use_global_stats or x.is_meta:
        plain: list[Tensor] = batch_norm(
            x,
            scale,
            bias,
            mean,
            variance,
            momentum=momentum,
            epsilon=epsilon,
            is_test=is_test,
            use_global_stats=use_global_stats,
            data_layout=data_layout,
        )
        return plain
    norm_group = collective_role("sync_batch_norm").norm_group
    y, batch_mean, batch_variance, _ = normalize_together(
        channels_first(x, data_layout), scale, bias, eps=epsilon, norm_group=norm_group
    )
    new_mean = mean * momentum + batch_mean * (1 - momentum)
    new_variance = variance * momentum + batch_variance * (1 - momentum)
    return [channels_last(y, data_layout), new_mean, new_variance]
