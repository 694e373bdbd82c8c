"""Several "machines" on this one: network namespaces that a test creates and removes.

Each host has an address in 10.77.0.0/24 on a bridge in a separate namespace, so nothing outside is
touched or reached. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

__all__ = ["Hosts"]


class Hosts:
    """`count` hosts, created by the constructor; use as a context manager."""

    def __init__(self, count: int) -> None:
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                pytest.skip(f"needs the command {tool} of iproute2")
        if os.geteuid() != 0:
            pytest.skip("needs root, to make network namespaces")
        self._names = [f"sf{os.getpid()}-{number}" for number in range(count)]
        self._bridge = f"sf{os.getpid()}-net"
        self._made: list[str] = []

    def __enter__(self) -> Hosts:
        try:
            self._make(self._bridge)
        except subprocess.CalledProcessError as error:
            self._remove()
            pytest.skip(f"cannot make network namespaces: {error.stderr.strip()}")
        try:
            self._in(self._bridge, "ip link add bridge type bridge")
            self._in(self._bridge, "ip link set bridge up")
            for number, name in enumerate(self._names):
                self._make(name)
                pair = f"ip link add port{number} type veth peer name eth0 netns {name}"
                self._in(self._bridge, pair)
                self._in(self._bridge, f"ip link set port{number} master bridge up")
                self.give_address(number, number)
                self._in(name, "ip link set eth0 up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    def prefix(self, number: int) -> tuple[str, ...]:
        """Return the prefix that makes a command run on the host."""
        return ("ip", "netns", "exec", self._names[number])

    def give_address(self, number: int, of: int) -> None:
        """Give host `number` the address of host `of`."""
        self._in(self._names[number], f"ip address add {self.address(of)}/24 dev eth0")

    def cut_off(self, number: int) -> None:
        """Disconnect the host."""
        self._in(self._bridge, f"ip link set port{number} down")

    def plug_in(self, number: int) -> None:
        self._in(self._bridge, f"ip link set port{number} up")

    def lose_packets(self, sender: int, receiver: int) -> None:
        """Drop what one host sends to the other; the other direction works."""
        nobody = f"{self.address(receiver)} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
        self._in(self._names[sender], f"ip neigh replace {nobody}")

    def find_packets(self, sender: int, receiver: int) -> None:
        self._in(self._names[sender], f"ip neigh del {self.address(receiver)} dev eth0")

    def shape(self, number: int, discipline: str) -> None:
        """Send all the host's traffic through this `tc` discipline, such as
        "netem delay 50ms"; skip the test if the kernel does not have it.
        """
        try:
            self._in(self._names[number], f"tc qdisc replace dev eth0 root {discipline}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"tc {discipline}: {error.stderr.strip()}")

    def unshape(self, number: int) -> None:
        self._in(self._names[number], "tc qdisc del dev eth0 root")

    def _make(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        self._in(name, "ip link set lo up")

    def _remove(self) -> None:
        while self._made:
            _run("ip", "netns", "del", self._made.pop())

    def _in(self, name: str, command: str) -> None:
        _run("ip", "netns", "exec", name, *command.split())


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
