"""Operators for distributed jobs: communication between ranks, and the server program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sparsefleet.collective.sync_batch_norm import normalize_together
from sparsefleet.fluid.collective.collective_role import (
    all_gathered,
    all_reduced,
    broadcast_values,
    collective_role,
    reduce_scattered,
)
from sparsefleet.fluid.collective.ranks import join_ranks, present_ranks
from sparsefleet.fluid.distributed.program_role import active_role, active_run
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.operators.normalization import batch_norm_op
from sparsefleet.fluid.operators.pools import channels_first, channels_last

# Operators that all ranks of a collective job run together; see `fluid.collective`.
#
# In shapes, R is the number of ranks.


Tensor = torch.Tensor

_REDUCTIONS_op = ("sum", "prod", "max", "min")  # by Fluid's number


def _no_shapes(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings  # the outputs are the inputs, changed in place
    return []


# -- operators that programs name -----------------------------------------------------------------


def _reduction(kind: str) -> Callable[[Tensor], Tensor]:
    def reduce(x: Tensor) -> Tensor:
        return x.clone() if x.is_meta else all_reduced(present_ranks(), x, kind)

    return reduce


for _kind in _REDUCTIONS_op:
    op(f"c_allreduce_{_kind}", "X", lod="none")(_reduction(_kind))


@op("allreduce", "X", lod="none")
def allreduce(x: Tensor, *, reduce_type: int = 0) -> Tensor:
    """Reduce over all ranks by sum, product, maximum or minimum."""
    return _reduction(_REDUCTIONS_op[reduce_type])(x)


@op("c_allgather", "X", lod="none")
def c_allgather(x: Tensor, *, nranks: int) -> Tensor:
    """Gather the rows of all ranks: [N, ...] -> [R * N, ...]."""
    if x.is_meta:
        return torch.cat([x] * nranks)
    return all_gathered(present_ranks().of_size(nranks, "c_allgather"), x)


@op("c_reducescatter", "X", lod="none")
def c_reducescatter(x: Tensor, *, nranks: int) -> Tensor:
    """Sum over all ranks and return this rank's rows: [R * N, ...] -> [N, ...]."""
    if x.is_meta:
        return x[: len(x) // nranks].clone()
    return reduce_scattered(present_ranks().of_size(nranks, "c_reducescatter"), x)


@op("broadcast", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
@op("c_broadcast", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
def c_broadcast(values: list[Tensor | SparseParameter], *, root: int = 0) -> list[list[Any]]:
    """Return rank `root`'s value."""
    return [broadcast_values(present_ranks(), values, root)]


@op("c_sync_calc_stream", "X*", "Out*", lod="none", infer=_no_shapes)
@op("c_sync_comm_stream", "X*", "Out*", lod="none", infer=_no_shapes)
def c_sync_stream(values: list[Any]) -> list[list[Any]]:
    """Return the input, since a run waits for its operands anyway."""
    return [values]


@op("c_comm_init", "X?", "", lod="none", has_effect=True, infer=_no_shapes)
def c_comm_init(x: Any, *, rank: int, nranks: int, endpoints: list[str]) -> list[Any]:
    """Connect to the other ranks."""
    del x
    join_ranks(rank, nranks, endpoints)
    return []


# -- operators in programs that train together ----------------------------------------------------


@op("watch_gradients", "X*", "", lod="none", has_effect=True, infer=_no_shapes)
def watch_gradients(values: list[Tensor], *, parameters: list[str]) -> list[Any]:
    """Start sending these gradients as soon as they are computed."""
    collective_role("watch_gradients").watch(parameters, values)
    return []


@op("mean_over_ranks", "X*", "Out*", lod="none", has_effect=True, infer=_no_shapes)
def mean_over_ranks(
    gradients: list[Any], *, parameters: list[str], tables: list[str]
) -> list[list[Any]]:
    """Average gradients over ranks: dense parameters first, then table rows as (keys, values)."""
    return [collective_role("mean_over_ranks").exchange(parameters, tables, gradients)]


@op("average_over_ranks", "Param* Loss?", "ParamOut*", lod="none", in_place=True)
def average_over_ranks(values: list[Tensor], loss: Tensor | None, *, parameters: list[str]) -> None:
    """Average parameters after a local SGD step if averaging is due; otherwise do nothing."""
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
    """Apply `batch_norm` over the batches of all ranks that have a batch."""
    if is_test or use_global_stats or x.is_meta:
        plain: list[Tensor] = batch_norm_op(
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


__all__: list[str] = []

_REDUCTIONS = ("sum", "prod", "max", "min")  # by Fluid's number


def _allreduce(
    x: Variable, out: Variable | None = None, reduce_type: str = "sum", sync_mode: bool = False
) -> Variable:
    """Call `_c_allreduce`."""
    helper = LayerHelper("allreduce")
    number = _REDUCTIONS.index(_checked(helper, reduce_type))
    attrs = {"reduce_type": number, "sync_mode": sync_mode}
    return _added(helper, "allreduce", x, out, attrs)


def _c_allreduce(
    x: Variable,
    out: Variable | None = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Variable:
    """Reduce over all ranks by "sum", "max", "min" or "prod"."""
    helper = LayerHelper("c_allreduce")
    attrs = {"ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(helper, f"c_allreduce_{_checked(helper, reduce_type)}", x, out, attrs)


def _broadcast(x: Variable, root: int, sync_mode: bool = False) -> Variable:
    """Call `_c_broadcast`."""
    attrs = {"root": root, "sync_mode": sync_mode}
    return _added(LayerHelper("broadcast"), "broadcast", x, x, attrs)


def _c_broadcast(
    x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """Replace x with rank `root`'s value."""
    attrs = {"root": root, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(LayerHelper("c_broadcast"), "c_broadcast", x, x, attrs)


def _c_allgather(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """Gather the rows of all ranks, which must have the same number of rows."""
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(LayerHelper("c_allgather"), "c_allgather", x, None, attrs)


def _c_reducescatter(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """Return this rank's rows of the sum over all ranks."""
    helper = LayerHelper("c_reducescatter")
    rows = helper.check_input(x, "x").shape[0]
    if rows > 0 and rows % nranks:
        raise helper.refuse(
            f"x has {rows} rows, which cannot be divided evenly among {nranks} ranks"
        )
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(helper, "c_reducescatter", x, None, attrs)


def _c_sync_calc_stream(x: Variable) -> Variable:
    """Return x, since a run waits for its operands anyway."""
    return _added(LayerHelper("c_sync_calc_stream"), "c_sync_calc_stream", x, x, {})


def _c_sync_comm_stream(x: Variable, ring_id: int) -> Variable:
    """Return x, since a run waits for its operands anyway."""
    attrs = {"ring_id": ring_id}
    return _added(LayerHelper("c_sync_comm_stream"), "c_sync_comm_stream", x, x, attrs)


def _checked(helper: LayerHelper, reduce_type: str) -> str:
    if reduce_type not in _REDUCTIONS:
        raise helper.refuse(f"reduce_type must be sum, max, min or prod, got {reduce_type!r}")
    return reduce_type


def _added(
    helper: LayerHelper, type: str, x: Variable, out: Variable | None, attrs: Mapping[str, Any]
) -> Variable:
    made = helper.new_variable() if out is None else out
    helper.append_op(type, {"X": helper.check_input(x, "x")}, {"Out": made}, attrs)
    return made


def _no_outputs(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings
    return []


@op("send", "X*", "", lod="none", has_effect=True, infer=_no_outputs)
def send(gradients: list[Any], *, parameters: list[str]) -> list[Any]:
    """Pass the gradients to the current step, which sends them at its end."""
    run = active_run("send")
    run.role.hand_over(run.step, parameters, gradients)
    return []


@op("recv", "", "Out*", lod="none", in_place=True)
def recv() -> None:
    """Copy the servers' values into the scope."""
    active_role("recv").fetch()


@op("listen_and_serve", "", "", lod="none", has_effect=True, infer=_no_outputs)
def listen_and_serve() -> list[Any]:
    """Serve until the job ends."""
    active_role("listen_and_serve").serve()
    return []


@op("prepare_server", "", "", lod="none", has_effect=True, infer=_no_outputs)
def prepare_server() -> list[Any]:
    """Start a server. Its tables get their initial values from the first worker."""
    active_role("prepare_server")
    return []
