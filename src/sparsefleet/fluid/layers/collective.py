"""Layers between the ranks of a collective job, by the name of Fluid's module.

All ranks must run them in the same order. With one rank each gives its input. Training needs none
of these: `fluid.incubate.fleet.collective` exchanges gradients by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper

__all__: list[str] = []

_REDUCTIONS = ("sum", "prod", "max", "min")  # by Fluid's numbers


def _allreduce(
    x: Variable, out: Variable | None = None, reduce_type: str = "sum", sync_mode: bool = False
) -> Variable:
    """As `_c_allreduce`."""
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
    """The sum, or "max", "min", "prod", over all ranks."""
    helper = LayerHelper("c_allreduce")
    attrs = {"ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(helper, f"c_allreduce_{_checked(helper, reduce_type)}", x, out, attrs)


def _broadcast(x: Variable, root: int, sync_mode: bool = False) -> Variable:
    """As `_c_broadcast`."""
    attrs = {"root": root, "sync_mode": sync_mode}
    return _added(LayerHelper("broadcast"), "broadcast", x, x, attrs)


def _c_broadcast(
    x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """What rank `root` has, in the place of x."""
    attrs = {"root": root, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(LayerHelper("c_broadcast"), "c_broadcast", x, x, attrs)


def _c_allgather(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """The rows of all ranks, each of which has as many."""
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(LayerHelper("c_allgather"), "c_allgather", x, None, attrs)


def _c_reducescatter(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """This rank's rows of the sum over all ranks."""
    helper = LayerHelper("c_reducescatter")
    rows = helper.check_input(x, "x").shape[0]
    if rows > 0 and rows % nranks:
        raise helper.refuse(f"x has {rows} rows, which {nranks} ranks cannot share evenly")
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _added(helper, "c_reducescatter", x, None, attrs)


def _c_sync_calc_stream(x: Variable) -> Variable:
    """x itself: a run waits for what it needs."""
    return _added(LayerHelper("c_sync_calc_stream"), "c_sync_calc_stream", x, x, {})


def _c_sync_comm_stream(x: Variable, ring_id: int) -> Variable:
    """x itself: a run waits for what it needs."""
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
