"""Fluid's settings of how a program is spread over servers."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.dispatchers import PSDispatcher
from sparsefleet.fleet.settings import Settings

__all__ = ["DistributeTranspilerConfig"]

_MIN_BLOCK_SIZE = 8192  # Fluid asserts it


@dataclass(init=False, repr=False, eq=False)
class _PlainFields(Settings):
    """The fields that any value of their type suits."""

    slice_var_up: bool = True
    """Cut large parameters over the servers."""

    enable_dc_asgd: bool = False
    """async: correct a gradient for what changed since its worker last fetched."""

    mode: str = "pserver"
    """One of "pserver", "nccl2", "collective"."""

    print_log: bool = False
    wait_port: bool = True
    """Workers wait until every server accepts connections."""

    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    """GEO: batches between exchanges."""

    collective_mode: str | None = None
    """One of "grad_allreduce", "local_sgd"."""

    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0


class DistributeTranspilerConfig(_PlainFields):
    """How a program is spread over servers, with Fluid's names and defaults.

    `sync_mode` and `runtime_split_send_recv` exclude each other: set the one to False before
    the other to True.

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
        """Smallest piece of a parameter, in elements."""
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
        """How pieces are dealt; None is RoundRobin."""
        return self._split_method

    @split_method.setter
    def split_method(self, value: type[PSDispatcher] | None) -> None:
        suits = isinstance(value, type) and PSDispatcher in value.__bases__
        if value is not None and not suits:
            raise ConfigError(
                "DistributeTranspilerConfig.split_method must be a class derived from "
                f"PSDispatcher directly (RoundRobin, HashName) or None, got {value!r}"
            )
        self._split_method = value

    @property
    def sync_mode(self) -> bool:
        """True: Fluid's older way to be synchronous. A sync strategy has it False."""
        return self._sync_mode

    @sync_mode.setter
    def sync_mode(self, value: bool) -> None:
        self._check("sync_mode", value, "runtime_split_send_recv", self._runtime_split_send_recv)
        self._sync_mode = bool(value)

    @property
    def runtime_split_send_recv(self) -> bool:
        """Gradients are cut into pieces while training, not in the program."""
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
                f"DistributeTranspilerConfig.{field} cannot be True while {other} is True: "
                f"set {other} = False first"
            )
