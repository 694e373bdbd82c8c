"""What programs of a parameter-server job do beside their network: see `fluid.distributed`."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.distributed.program_role import active_role
from sparsefleet.fluid.lowering.registry import op


def _no_outputs(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings
    return []


@op("send", "X*", "", lod="none", has_effect=True, infer=_no_outputs)
def send(gradients: list[Any], *, parameters: list[str]) -> list[Any]:
    """Hands the gradients of a step over; returns when the next step may begin."""
    active_role("send").hand_over(parameters, gradients)
    return []


@op("recv", "", "Out*", lod="none", in_place=True)
def recv() -> None:
    """Brings what the servers hold into the scope."""
    active_role("recv").fetch()


@op("listen_and_serve", "", "", lod="none", has_effect=True, infer=_no_outputs)
def listen_and_serve() -> list[Any]:
    """Serves until the job ends."""
    active_role("listen_and_serve").serve()
    return []


@op("prepare_server", "", "", lod="none", has_effect=True, infer=_no_outputs)
def prepare_server() -> list[Any]:
    """Begins a server's life; its tables get their first values from the first worker."""
    active_role("prepare_server")
    return []
