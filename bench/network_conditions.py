"""CTR-DNN between two machines: what delay and bandwidth of the network cost each mode.

    python bench/network_conditions.py [--gbit 25,10,1] [--delay-ms 0,0.2,1] [--json FILE]

Two servers run on one machine and two workers on the other; under DDP, each machine has one rank. A
machine is a network namespace. The wire between them, bench/delaying_wire.py, delays every packet
and limits the bits per second, each way; what its process can carry at most is measured first (no
side needs more than 6 Gbit/s on two cores). sparsefleet encrypts its traffic (TLS 1.3), DDP does
not. All sides of a table take turns, one section per round. The wire's process and the kernel's TCP
share the cores with all sides. Needs root, `ip`, `nsenter` and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collective_nodes import Network
from ctr_groups import DDP
from ctr_start import SideSpec, Sources, StartedSide, fleet, start
from measure import argument_parser, console, machine, note, report, write_json
from side_processes import Node

SIDES: tuple[SideSpec, ...] = (
    DDP,
    *(fleet(mode, wire_dtype=dtype) for mode in ("sync", "async") for dtype in (None, "bf16")),
)
BATCHES = (1000, 100)
RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
begun, taken, room = time.monotonic(), 0, bytearray(1 << 20)
while size := peer.recv_into(room):
    taken += size
print(8e-9 * taken / (time.monotonic() - begun))
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
end = time.monotonic() + 1
while time.monotonic() < end:
    peer.sendall(bytes(1 << 20))
"""


class Wire(NamedTuple):
    """What the wire does to packets."""

    gbit_per_s: float
    delay_ms: float

    def __str__(self) -> str:
        return f"{self.gbit_per_s:g} Gbit/s, {self.delay_ms:g} ms"


class Taken(NamedTuple):
    """One section of a side."""

    examples_per_s: float
    kb_per_example: float
    """Between the machines, both ways, headers and acknowledgements included."""


Figures = dict[str, dict[str, list[Taken]]]
"""By wire and batch size, then by side."""


def wire_limit(nodes: Sequence[Node]) -> float:
    """Return the Gbit/s of one TCP connection through the wire."""
    to, source = nodes
    command = [*to.prefix, sys.executable, "-c", RECEIVE, to.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sender = [*source.prefix, sys.executable, "-c", SEND, to.address, port]
        subprocess.run(sender, check=True)
        return float(receiver.stdout.readline())


def bytes_passed(node: Node) -> int:
    """Return the bytes that have passed the node's end of the wire, both ways."""
    command = [*node.prefix, "ip", "-s", "-json", "link", "show", node.device]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    stats = json.loads(done.stdout)[0]["stats64"]
    return int(stats["rx"]["bytes"]) + int(stats["tx"]["bytes"])


def take_section(one: StartedSide, batch: int, steps: int, node: Node) -> Taken:
    examples = steps * batch * one.side.num_workers
    before = bytes_passed(node)
    rate = one.side.run(batch, examples).examples_per_s
    return Taken(rate, (bytes_passed(node) - before) / 1e3 / examples)


def measure(
    wires: Sequence[Wire], network: Network, folder: Path, options: argparse.Namespace
) -> Figures:
    sources = Sources(folder=folder, nodes=network.nodes)
    node = network.nodes[0]
    figures: Figures = {}
    with contextlib.ExitStack() as stack:
        sides: dict[str, StartedSide] = {}
        for spec in SIDES:
            sides[spec.name] = start(spec, sources)
            stack.callback(sides[spec.name].side.close)
        for wire in wires:
            network.delay(wire.delay_ms / 1e3, wire.gbit_per_s)
            for batch in BATCHES:
                steps: dict[str, int] = {}
                for name, one in sides.items():  # also lets TCP find its window
                    rate = take_section(one, batch, 4, node).examples_per_s
                    wanted = options.section_s * rate / batch / one.side.num_workers
                    steps[name] = max(2, round(wanted))
                taken = figures[f"{wire}, batch {batch:,}"] = {name: [] for name in sides}
                for _ in range(options.repeats):
                    for name, one in sides.items():
                        taken[name].append(take_section(one, batch, steps[name], node))
                console.print(f"  {wire}, batch {batch:,}: done", highlight=False)
    return figures


def report_table(title: str, sides: dict[str, list[Taken]]) -> None:
    rows = []
    reference = sides[DDP.name]
    for name, taken in sides.items():
        rates = [one.examples_per_s for one in taken]
        ratios = [
            a.examples_per_s / b.examples_per_s for a, b in zip(taken, reference, strict=True)
        ]
        rows.append(
            [
                name,
                f"{statistics.median(rates):,.0f}",
                f"{min(rates):,.0f} .. {max(rates):,.0f}",
                f"{statistics.median(ratios):.2f}x",
                f"{statistics.median(one.kb_per_example for one in taken):.2f}",
            ]
        )
    report(title, ["", "examples/s", "range", "over DDP", "KB/example"], rows)


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--gbit", type=numbers, default=[25, 10, 1], help="comma-separated")
    parser.add_argument("--delay-ms", type=numbers, default=[0, 0.2, 1], help="each way")
    options = parser.parse_args()
    options.section_s = 1.0
    wires = [Wire(gbit, delay) for gbit in options.gbit for delay in options.delay_ms]
    if options.quick:
        wires, options.repeats, options.section_s = wires[:1], 1, 0.2
    console.print("[bold]CTR-DNN between two machines[/bold]")
    console.print(machine())
    network = Network()
    with contextlib.closing(network), tempfile.TemporaryDirectory() as folder:
        if network.why_not is not None:
            sys.exit(f"bench/network_conditions.py: {network.why_not}")
        limit = wire_limit(network.nodes)
        figures = measure(wires, network, Path(folder), options)
    for title, sides in figures.items():
        report_table(title, sides)
    note(f"Without a limit, one TCP connection gets {limit:.1f} Gbit/s through the wire.")
    write_json(options.json, {"wire_gbit_per_s": limit, "sections": figures})


if __name__ == "__main__":
    main()
