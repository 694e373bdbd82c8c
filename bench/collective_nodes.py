"""Ranks on two nodes: network namespaces connected by a wire, or just this machine."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from delaying_wire import DEVICE
from side_processes import HERE, Node, Side, SideProcess

FOLDER = Path(__file__).resolve().parent
WIRE_S = 20.0
PORT = 29_500
"""Every port is free in a new namespace; each group of ranks uses the next one."""


@dataclass(frozen=True, slots=True)
class Section:
    """The cost of one step, averaged over a section."""

    ms: float
    cpu_us: float
    """Over all ranks."""
    sent_kb: float
    """By all ranks, including TCP's overhead; forwarding by the wire's process is not counted
    again.
    """
    across_kb: float
    """The part that went from one node to the other."""


class Network:
    """Two nodes. Without the rights to create namespaces, both are this machine, and traffic
    between them cannot be delayed; `why_not` then says so.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._wire: SideProcess | None = None
        self.nodes = [HERE] * 2
        missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
        if os.geteuid() != 0 or missing or not Path("/dev/net/tun").exists():
            lacks = ", ".join(missing) or "root's rights and /dev/net/tun"
            self.why_not = f"a delay needs a network namespace: {lacks} not found"
            return
        wire = SideProcess([sys.executable, str(FOLDER / "delaying_wire.py")], {})
        try:
            words = wire.wait_for("^ready .*", WIRE_S).group().split()[1:]
        except (RuntimeError, TimeoutError) as error:
            wire.close(kill=True)
            self.why_not = f"a delay needs a network namespace, which cannot be made: {error}"
            return
        self._wire = wire
        self.nodes = [
            Node(("nsenter", f"--net={path}"), address, DEVICE)
            for path, address in zip(words[::2], words[1::2], strict=True)
        ]

    def delay(self, seconds: float, gbit_per_s: float | None = None) -> None:
        """Set the delay from now on, each way, and how much the wire carries; None: no limit."""
        if self._wire is not None:
            limit = "" if gbit_per_s is None else f" {1e9 * gbit_per_s}"
            self._wire.send(f"{seconds}{limit}")
            self._wire.wait_for("^delayed$", WIRE_S)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


class Ranks:
    """Processes, half of them on each node, that can run all sides for their number of ranks."""

    def __init__(self, size: int, network: Network, log: Path) -> None:
        nodes = network.nodes
        per_node = size // len(nodes)
        port = PORT + size if network.why_not is None else free_port()
        self._processes = []
        for rank in range(size):
            node = nodes[rank // per_node]
            command = [*node.prefix, sys.executable, str(FOLDER / "collective_ranks.py")]
            command += ["--rank", str(rank), "--size", str(size), "--per-node", str(per_node)]
            command += ["--meeting", f"{nodes[0].address}:{port}"]
            # One rank per namespace reports what was sent.
            command += ["--counts"] * (rank % per_node == 0 and (rank == 0 or bool(node.prefix)))
            environ = {"GLOO_SOCKET_IFNAME": node.device}
            self._processes.append(
                SideProcess(command, environ, log=log.with_suffix(f".{size}-{rank}.log"))
            )
        self._side = Side(self._processes)

    def wait_ready(self) -> None:
        self._side.wait_ready()

    def run(self, side: str, model: str, steps: int) -> Section:
        answers = self._side.ask(f"run {side} {model} {steps}")
        took_s = max(a["end"] for a in answers) - min(a["begin"] for a in answers)
        sent = sum(sum(a["sent"].values()) for a in answers)
        across = sum(a["sent"].get(DEVICE, 0) for a in answers)
        return Section(
            1e3 * took_s / steps,
            1e6 * sum(a["cpu_s"] for a in answers) / steps,
            sent / 1e3 / steps,
            across / 1e3 / steps,
        )

    def close(self, *, kill: bool = False) -> None:
        if kill:
            for process in self._processes:
                process.close(kill=True)
        else:
            self._side.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def speed_ratio(ours: Sequence[Section], theirs: Sequence[Section]) -> float:
    """Return the speed ratio: the median over rounds, compared round by round because machines
    drift.
    """
    return statistics.median(b.ms / a.ms for a, b in zip(ours, theirs, strict=True))
