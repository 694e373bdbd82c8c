"""Two network namespaces, standing for two machines, and a wire between them with a variable delay.

    python bench/delaying_wire.py

Prints `ready` and, for each of the two, a path for `nsenter --net=PATH` and its address. An input
line with a number of seconds sets the delay, each way, of packets sent from then on; a second
number limits the bits per second, each way. It is answered with `delayed`. The wire carries whole
packets of the kernel's own TCP between two TUN devices, as many per second as this process can pass
on. Namespaces and devices end with the processes in them. Needs root, but not `tc netem`, which
some kernels lack.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

DEVICE = "wire"
"""The device's name in both."""
ADDRESSES = ("10.77.0.1", "10.77.0.2")
MTU = 65_000
"""As large as possible: each packet costs this process time, its bytes hardly any."""
QUEUE_PACKETS = 10_000
SETTINGS = {"tcp_rmem": "4096 8388608 8388608", "tcp_wmem": "4096 8388608 8388608"}
"""Windows that hold a model's gradients: the benchmark compares delays, not how long TCP takes to
find its window.
"""

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


def enter_new_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a network namespace: {os.strerror(code)}; run as root")


def open_end(address: str) -> tuple[int, int]:
    """Move this process into a new namespace; return the wire's end there and a file that stands
    for the namespace.
    """
    enter_new_namespace()
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for command in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{address}/24", "dev", DEVICE),
        ("link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", str(QUEUE_PACKETS), "up"),
    ):
        subprocess.run(["ip", *command], check=True)
    for name, value in SETTINGS.items():
        Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
    return end, os.open("/proc/self/ns/net", os.O_RDONLY)


class Wire:
    """Packets in transit, each way oldest first."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self._ways = {source: _Way(sink) for source, sink in zip(ends, reversed(ends), strict=True)}
        self._delay_s = 0.0
        self._bit_s = 0.0  # the time that one bit takes

    def serve(self, commands: TextIO) -> None:
        """Run until there are no more commands."""
        while True:
            arrivals = [way.packets[0][0] for way in self._ways.values() if way.packets]
            until_s = max(0.0, min(arrivals) - time.monotonic()) if arrivals else None
            readable, _, _ = select.select([*self._ways, commands], [], [], until_s)
            for source in readable:
                if source is not commands:
                    self._take(source)
                elif line := commands.readline():
                    delay_s, *bits_per_s = map(float, line.split())
                    self._delay_s = delay_s
                    self._bit_s = 1 / bits_per_s[0] if bits_per_s else 0.0
                    print("delayed", flush=True)
                else:
                    return
            for way in self._ways.values():
                way.hand_over()

    def _take(self, source: int) -> None:
        way = self._ways[source]
        while True:
            try:
                packet = os.read(source, MTU)
            except BlockingIOError:
                return
            way.free_s = max(time.monotonic(), way.free_s) + 8 * len(packet) * self._bit_s
            way.packets.append((way.free_s + self._delay_s, packet))
            if not self._delay_s:
                way.hand_over()


class _Way:
    """One direction of the wire."""

    def __init__(self, sink: int) -> None:
        self.packets: collections.deque[tuple[float, bytes]] = collections.deque()
        """When each arrives, and its bytes."""
        self.free_s = 0.0
        """When the last packet has left, so that the next can."""
        self._sink = sink

    def hand_over(self) -> None:
        """Pass on the packets that have arrived."""
        while self.packets and self.packets[0][0] <= time.monotonic():
            _, packet = self.packets.popleft()
            os.write(self._sink, packet)


def main() -> None:
    ends, namespaces = zip(*map(open_end, ADDRESSES), strict=True)
    paths = [f"/proc/{os.getpid()}/fd/{namespace}" for namespace in namespaces]
    words = [word for pair in zip(paths, ADDRESSES, strict=True) for word in pair]
    print("ready", *words, flush=True)
    Wire(ends).serve(sys.stdin)


if __name__ == "__main__":
    main()
