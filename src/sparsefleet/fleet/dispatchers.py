"""Which server gets which piece of the dense parameters."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

__all__ = ["HashName", "PSDispatcher", "RoundRobin"]


class PSDispatcher(ABC):
    """Deals pieces, by name, over server endpoints."""

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._endpoints = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        """The endpoints, in order."""
        return list(self._endpoints)

    def reset(self) -> None:
        """Begins again at the first server."""
        self._step = 0

    @abstractmethod
    def dispatch(self, varlist: Iterable[object]) -> list[str]:
        """The endpoint of each piece; a piece is its name, or has a `name`."""


class RoundRobin(PSDispatcher):
    """One after the other; goes on where the last call ended.

    >>> dealer = RoundRobin(["a:1", "b:1"])
    >>> dealer.dispatch(["w0", "w1", "w2"]), dealer.dispatch(["w3"])
    (['a:1', 'b:1', 'a:1'], ['b:1'])
    """

    def dispatch(self, varlist: Iterable[object]) -> list[str]:
        dealt = []
        for _ in varlist:
            dealt.append(self._endpoints[self._step % len(self._endpoints)])
            self._step += 1
        return dealt


class HashName(PSDispatcher):
    """By a hash of the name which is the same in every process (Fluid's was not)."""

    def dispatch(self, varlist: Iterable[object]) -> list[str]:
        names = (str(getattr(piece, "name", piece)) for piece in varlist)
        return [self._endpoints[zlib.crc32(name.encode()) % len(self._endpoints)] for name in names]
