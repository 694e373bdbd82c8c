"""Warnings about unprotected traffic between ranks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from sparsefleet.collective import World, connections
from sparsefleet.collective.connections import warn_of_exposed_traffic
from sparsefleet.errors import DeadlineError

LOGGER = "sparsefleet.collective"
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_chosen_nor_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connections, "_warned", set())


def join_two(ranks_per_node: int, *, rank: int = 0) -> None:
    """One of two ranks; the other one never arrives."""
    with pytest.raises(DeadlineError, match="did not reach the rendezvous at the given store"):
        World.join(
            rank=rank,
            size=2,
            ranks_per_node=ranks_per_node,
            meeting_point=dist.HashStore(),
            timeout_s=0.2,
        )


def test_first_rank_of_each_machine_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        join_two(1)
        join_two(1)
    (record,) = caplog.records
    message = record.getMessage()
    assert "without encryption or authentication" in message
    for choice in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT=TCP_TLS", "docs/collective.md"):
        assert choice in message


def test_ranks_of_one_machine_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        join_two(2)
        join_two(2, rank=1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("backend", "chosen", "named"),
    [
        ("gloo", {"GLOO_SOCKET_IFNAME": "wg0"}, ()),
        ("gloo", {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}, ()),
        ("gloo", {"GLOO_DEVICE_TRANSPORT": "TCP"}, ("GLOO_SOCKET_IFNAME",)),
        ("cpu:gloo,cuda:nccl", {}, ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")),
        ("cpu:gloo,cuda:nccl", {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}, ("NCCL_SOCKET_IFNAME",)),
        ("cpu:gloo,cuda:nccl", {"GLOO_SOCKET_IFNAME": "a", "NCCL_SOCKET_IFNAME": "a"}, ()),
    ],
)
def test_explicit_choices_do_not_warn(
    backend: str,
    chosen: dict[str, str],
    named: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, LOGGER):
        warn_of_exposed_traffic(backend)
    text = caplog.text
    assert bool(caplog.records) == bool(named)
    for interface in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        assert (interface in text) == (interface in named)


@pytest.mark.parametrize(
    ("transport", "message"),
    [
        ("CARRIER_PIGEON", "GLOO_DEVICE_TRANSPORT is CARRIER_PIGEON, which torch"),
        # Without certificates it fails on any torch: unsupported, or the files are missing.
        ("TCP_TLS", "TCP_TLS"),
    ],
)
def test_transport_that_torch_cannot_use_is_an_error_before_ranks_meet(
    transport: str, message: str
) -> None:
    # Torch reads the variable once, when it is imported.
    code = (
        "from sparsefleet.collective import World\n"
        "World.join(rank=0, size=2, meeting_point='127.0.0.1:1')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GLOO_DEVICE_TRANSPORT": transport},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("sparsefleet.errors.ConfigError: ")
    assert message in last
