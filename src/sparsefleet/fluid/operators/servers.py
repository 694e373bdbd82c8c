"""Operators for programs in a parameter-server job; see `fluid.distributed`."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.distributed.program_role import active_role, active_run
from sparsefleet.fluid.lowering.registry import op


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
