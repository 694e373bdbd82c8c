"""Layers between the ranks of collective training, by the name of Fluid's module.

With one rank each gives its input. Gradients of several ranks are summed up by
`fluid.incubate.fleet.collective`, which needs none of these.
"""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper

__all__: list[str] = []


def _alone(name: str, x: Variable, out: Variable | None = None, nranks: int = 1) -> Variable:
    helper = LayerHelper(name)
    if nranks != 1:
        raise helper.refuse(f"takes nranks=1: exchange inside a program is not there, got {nranks}")
    made = helper.new_variable() if out is None else out
    helper.append_op("assign", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


def _c_allreduce(
    x: Variable,
    out: Variable | None = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Variable:
    """The sum, or "max", "min", "prod", over all ranks."""
    del ring_id, use_calc_stream
    if reduce_type not in ("sum", "max", "min", "prod"):
        raise LayerHelper("c_allreduce").refuse(
            f"reduce_type must be sum, max, min or prod, got {reduce_type!r}"
        )
    return _alone("c_allreduce", x, out)


def _c_allgather(x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Any:
    """The rows of all ranks."""
    del ring_id, use_calc_stream
    return _alone("c_allgather", x, None, nranks)


def _c_broadcast(
    x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """What rank `root` has."""
    del root, ring_id, use_calc_stream
    return x


def _c_reducescatter(
    x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False
) -> Variable:
    """A share of the sum over all ranks."""
    del ring_id, use_calc_stream
    return _alone("c_reducescatter", x, None, nranks)
