"""Fluid's settings for distributing a program over servers."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet.settings import Settings

__all__ = ["DistributeTranspilerConfig", "HashName", "PSDispatcher", "RoundRobin"]


class PSDispatcher(ABC):
    """Distributes pieces, which are blocks of split parameters, over server endpoints."""

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._endpoints = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        """Return the endpoints, in order."""
        return list(self._endpoints)

    def reset(self) -> None:
        """Make the next `dispatch` start at the first server."""
        self._step = 0

    @abstractmethod
    def dispatch(self, varlist: Iterable[object]) -> list[str]:
        """Return the endpoint of each piece; a piece is a name, or an object with a `name`."""


class RoundRobin(PSDispatcher):
    """Distributes pieces in turn, continuing where the last call stopped.

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
    """Distributes pieces by a hash of their names that is the same in all processes."""

    def dispatch(self, varlist: Iterable[object]) -> list[str]:
        names = (str(getattr(piece, "name", piece)) for piece in varlist)
        return [self._endpoints[zlib.crc32(name.encode()) % len(self._endpoints)] for name in names]


_MIN_BLOCK_SIZE = 8192  # Fluid asserts this


@dataclass(init=False, repr=False, eq=False)
class _PlainFields(Settings):
    """The config fields that accept any value of their type."""

    slice_var_up: bool = True
    """Whether to split large parameters over the servers."""

    enable_dc_asgd: bool = False
    """Whether to correct gradients for changes since the worker's last fetch, in async mode."""

    mode: str = "pserver"
    """Either "pserver", "nccl2" or "collective"."""

    print_log: bool = False
    wait_port: bool = True
    """Whether workers wait until every server accepts connections."""

    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    """Number of batches between exchanges, in GEO mode."""

    collective_mode: str | None = None
    """Either "grad_allreduce" or "local_sgd"."""

    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0


class DistributeTranspilerConfig(_PlainFields):
    """How a program is distributed over servers, with Fluid's names and defaults.

    `sync_mode` and `runtime_split_send_recv` are mutually exclusive: set one to False before
    setting the other to True.

    >>> config = DistributeTranspilerConfig()
    >>> config.sync_mode = False
    >>> config.min_block_size = 81920
    """

    def __init__(self) -> None:
        self._min_block_size = _MIN_BLOCK_SIZE
        self._split_method: type[PSDispatcher] | None = None
        self._sync_mode = True
        self._runtime_split_send_recv = False

    @property
    def min_block_size(self) -> int:
        """Return the size of the smallest piece of a parameter, in elements."""
        return self._min_block_size

    @min_block_size.setter
    def min_block_size(self, value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < _MIN_BLOCK_SIZE:
            raise ConfigError(
                f"DistributeTranspilerConfig.min_block_size must be an int >= {_MIN_BLOCK_SIZE} "
                f"(elements, not bytes), got {value!r}"
            )
        self._min_block_size = value

    @property
    def split_method(self) -> type[PSDispatcher] | None:
        """Return the class that distributes pieces over servers; None means RoundRobin."""
        return self._split_method

    @split_method.setter
    def split_method(self, value: type[PSDispatcher] | None) -> None:
        suits = isinstance(value, type) and PSDispatcher in value.__bases__
        if value is not None and not suits:
            raise ConfigError(
                "DistributeTranspilerConfig.split_method must be a direct subclass of PSDispatcher "
                f"(RoundRobin, HashName) or None, got {value!r}"
            )
        self._split_method = value

    @property
    def sync_mode(self) -> bool:
        """Whether to use Fluid's older synchronous mode; False in a sync strategy."""
        return self._sync_mode

    @sync_mode.setter
    def sync_mode(self, value: bool) -> None:
        self._check("sync_mode", value, "runtime_split_send_recv", self._runtime_split_send_recv)
        self._sync_mode = bool(value)

    @property
    def runtime_split_send_recv(self) -> bool:
        """Whether to split gradients at run time rather than with operators in the program."""
        return self._runtime_split_send_recv

    @runtime_split_send_recv.setter
    def runtime_split_send_recv(self, value: bool) -> None:
        self._check("runtime_split_send_recv", value, "sync_mode", self._sync_mode)
        self._runtime_split_send_recv = bool(value)

    def _check(self, field: str, value: object, other: str, other_value: bool) -> None:
        if value is None:
            raise ConfigError(f"DistributeTranspilerConfig.{field} must be True or False, got None")
        if value and other_value:
            raise ConfigError(
                f"DistributeTranspilerConfig.{field} cannot be True while {other} is True; set "
                f"{other} = False first"
            )
