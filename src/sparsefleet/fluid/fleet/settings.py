"""Fluid's configs: objects with a fixed set of settable fields.

Setting an unknown field raises an error that suggests the nearest field name. Names and defaults
are from Fluid 1.8.5. Many settings affect only Fluid's graph executor and are kept so that scripts
can set them; only the settings that have an effect are documented. Those of workers and servers
have defaults from FLAGS_ environment variables.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.checked_environ import Variable

__all__ = [
    "BuildStrategy",
    "DistributeTranspilerConfig",
    "ExecutionStrategy",
    "HashName",
    "ModeName",
    "PSDispatcher",
    "RoundRobin",
    "ServerRuntimeConfig",
    "Settings",
    "TrainerRuntimeConfig",
    "UnknownFieldError",
    "cpu_num",
    "unknown_field",
]


class UnknownFieldError(ConfigError, AttributeError):
    """Raised for an unknown field; the message suggests the nearest field name."""


def unknown_field(owner: str, name: str, known: Iterable[str]) -> UnknownFieldError:
    """Return the error for a field that `owner` does not have.

    >>> str(unknown_field("BuildStrategy", "asnyc_mode", ["async_mode", "memory_optimize"]))
    "BuildStrategy has no field 'asnyc_mode'; did you mean 'async_mode'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its fields are {', '.join(names)}"
    return UnknownFieldError(f"{owner} has no field {name!r}; {hint}")


class Settings:
    """Base class for configs whose fields are class annotations or properties with a setter."""

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the settable fields, in order of definition."""
        names: dict[str, None] = {}
        for kind in reversed(cls.__mro__):
            for name in inspect.get_annotations(kind):
                names[name] = None
            for name, value in kind.__dict__.items():
                if isinstance(value, property) and value.fset is not None:
                    names[name] = None
        return tuple(name for name in names if not name.startswith("_"))

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.field_names()}

    def update(self, fields: Mapping[str, object]) -> None:
        """Set fields by name. If one value is rejected, no field is set."""
        for name in fields:
            if name not in self.field_names():
                raise unknown_field(type(self).__name__, name, self.field_names())
        before = dict(vars(self))
        try:
            for name, value in fields.items():
                setattr(self, name, value)
        except (TypeError, ValueError):
            vars(self).clear()
            vars(self).update(before)
            raise

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name not in self.field_names():
            raise unknown_field(type(self).__name__, name, self.field_names())
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"


ModeName = Literal["sync", "half_async", "async", "geo"]

_log = logging.getLogger("sparsefleet.fleet")

# None means the number of training threads, CPU_NUM.
_DEFAULTS: dict[str, str | None] = {
    "communicator_max_merge_var_num": None,
    "communicator_send_queue_size": None,
    "communicator_independent_recv_thread": "1",
    "communicator_min_send_grad_num_before_recv": None,
    "communicator_thread_pool_size": "5",
    "communicator_send_wait_times": "5",
    "communicator_is_sgd_optimizer": "1",
    "rpc_deadline": "180000",
    "rpc_retry_times": "3",
}
_ONE_PER_THREAD = ("communicator_max_merge_var_num", "communicator_send_queue_size")
_EVERY_MODE = (
    "communicator_send_wait_times",
    "communicator_thread_pool_size",
    "rpc_deadline",
    "rpc_retry_times",
)

_KEYS_OF_MODE: dict[ModeName, tuple[str, ...]] = {
    "sync": (*_ONE_PER_THREAD, *_EVERY_MODE),
    "half_async": (*_ONE_PER_THREAD, *_EVERY_MODE),
    "async": (
        *_ONE_PER_THREAD,
        "communicator_independent_recv_thread",
        "communicator_is_sgd_optimizer",
        "communicator_min_send_grad_num_before_recv",
        *_EVERY_MODE,
    ),
    "geo": ("communicator_send_wait_times", "communicator_thread_pool_size"),
}
_LOWEST = {
    "communicator_independent_recv_thread": 0,
    "communicator_is_sgd_optimizer": 0,
    "communicator_min_send_grad_num_before_recv": 0,
    "communicator_send_wait_times": 0,
    "rpc_retry_times": 0,
}


def cpu_num() -> int:
    """Return CPU_NUM, a worker's number of training threads, or 1 if it is not set."""
    return Variable("CPU_NUM", os.environ.get("CPU_NUM", "").strip() or "1").integer(low=1)


class TrainerRuntimeConfig:
    """How a worker merges and sends gradients and fetches parameters.

    The settings are strings in `runtime_configs`, initialized from the environment variables
    CPU_NUM and FLAGS_<key>. `print(config)` shows the settings that the training mode uses.

    >>> TrainerRuntimeConfig().runtime_configs["communicator_thread_pool_size"]
    '5'
    """

    def __init__(self) -> None:
        self.mode: ModeName | None = None
        """The mode, set by the strategy that holds this config. If None, all settings apply."""
        self.num_threads = str(cpu_num())
        self.runtime_configs: dict[str, str] = {}
        for key, default in _DEFAULTS.items():
            found = os.environ.get(f"FLAGS_{key}", "").strip()
            if found:
                _check_knob(f"FLAGS_{key}", key, found)
            self.runtime_configs[key] = found or default or self.num_threads

    def update(self, knobs: Mapping[str, object]) -> None:
        """Set values by name. If one value is rejected, none is set. Values may be numbers."""
        for key, value in knobs.items():
            if key not in _DEFAULTS:
                raise unknown_field("TrainerRuntimeConfig.runtime_configs", key, _DEFAULTS)
            _check_knob(key, key, _as_text(value))
        self.runtime_configs.update({key: _as_text(value) for key, value in knobs.items()})

    def get_communicator_flags(self) -> dict[str, str]:
        """Check and return the settings that the training mode uses.

        In sync and half_async, the gradients of all of a worker's threads are merged into one send;
        a setting for any other number is corrected with a warning.
        """
        keys = _DEFAULTS if self.mode is None else _KEYS_OF_MODE[self.mode]
        for key in self.runtime_configs:
            if key not in _DEFAULTS:
                raise unknown_field("TrainerRuntimeConfig.runtime_configs", key, _DEFAULTS)
        if self.mode in ("sync", "half_async"):
            self._merge_all_threads()
        for key in keys:
            _check_knob(key, key, _as_text(self.runtime_configs[key]))
        return {key: _as_text(self.runtime_configs[key]) for key in keys}

    def _merge_all_threads(self) -> None:
        for key in _ONE_PER_THREAD:
            found = _as_text(self.runtime_configs[key])
            if found != self.num_threads:
                _log.warning(
                    "%s mode: %s must be CPU_NUM, %s, got %s; using %s",
                    self.mode,
                    key,
                    self.num_threads,
                    found,
                    self.num_threads,
                )
                self.runtime_configs[key] = self.num_threads

    def __repr__(self) -> str:
        keys = _DEFAULTS if self.mode is None else _KEYS_OF_MODE[self.mode]
        rows = [(key, self.runtime_configs.get(key, "-")) for key in sorted(keys)]
        title = (
            "TrainerRuntimeConfig" if self.mode is None else f"TrainerRuntimeConfig ({self.mode})"
        )
        return _two_columns(title, rows)


class ServerRuntimeConfig(Settings):
    """A server's thread counts under Fluid's names, with or without a leading underscore.

    >>> ServerRuntimeConfig().rpc_get_thread_num
    12
    """

    rpc_send_thread_num: int
    rpc_get_thread_num: int
    rpc_prefetch_thread_num: int

    def __init__(self) -> None:
        for name in self.field_names():
            found = Variable(f"FLAGS_{name}", os.environ.get(f"FLAGS_{name}", "").strip() or "12")
            super().__setattr__(name, found.integer(low=1))

    def update(self, fields: Mapping[str, object]) -> None:
        super().update({name.removeprefix("_"): value for name, value in fields.items()})

    def __setattr__(self, name: str, value: object) -> None:
        name = name.removeprefix("_")
        super().__setattr__(name, _thread_count(f"ServerRuntimeConfig.{name}", value))

    def __getattr__(self, name: str) -> int:
        plain = name.removeprefix("_")
        if plain == name or plain not in self.field_names():
            raise unknown_field(type(self).__name__, name, self.field_names())
        return int(getattr(self, plain))

    def __repr__(self) -> str:
        rows = [(name, str(value)) for name, value in self.as_dict().items()]
        return _two_columns("ServerRuntimeConfig", rows)


def _thread_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")
    return Variable(name, str(value)).integer(low=1)


def _check_knob(shown_name: str, key: str, text: str) -> None:
    Variable(shown_name, text).integer(low=_LOWEST.get(key, 1))


def _as_text(value: object) -> str:
    """Return a setting as a string, with True and False as Fluid's "1" and "0"."""
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def _two_columns(title: str, rows: list[tuple[str, str]]) -> str:
    left = max(len(name) for name, _ in [("key", ""), *rows])
    right = max(len(value) for _, value in [("", "value"), *rows])
    rule = f"+-{'-' * left}-+-{'-' * right}-+"
    lines = [f"| {name:<{left}} | {value:>{right}} |" for name, value in [("key", "value"), *rows]]
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule])


@dataclass(kw_only=True, repr=False)
class ExecutionStrategy(Settings):
    """Settings for how operators are scheduled.

    >>> ExecutionStrategy().num_iteration_per_drop_scope
    100
    """

    num_threads: int = 0
    """Number of training threads; 0 lets the executor choose."""

    num_iteration_per_drop_scope: int = 100
    """Number of runs of a data-parallel program after which freed memory is returned to the system.
    A larger value means fewer allocations and more memory.
    """

    num_iteration_per_run: int = 1
    use_thread_barrier: bool = False
    """Whether a worker's threads wait for each other after each batch (sync, half-async)."""

    use_experimental_executor: bool = True
    use_cuda: bool = True
    allow_op_delay: bool = False


@dataclass(kw_only=True, repr=False)
class BuildStrategy(Settings):
    """Settings for how a program is compiled.

    >>> strategy = BuildStrategy()
    >>> strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
    """

    class ReduceStrategy(Enum):
        """How gradients from several places are combined."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(Enum):
        """How the gradient of the loss is scaled."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    reduce_strategy: ReduceStrategy = ReduceStrategy.AllReduce
    """With "Reduce", a worker's threads share one copy of the parameters."""

    gradient_scale_strategy: GradientScaleStrategy = GradientScaleStrategy.CoeffNumDevice
    """The initial gradient of the loss: 1/places, 1, or fed by the script."""

    fuse_all_reduce_ops: bool = True
    fuse_elewise_add_act_ops: bool = False
    """Whether to use torch.compile to fuse a sum with the activation that follows it."""

    fuse_bn_act_ops: bool = False
    """Whether to use torch.compile to fuse batch norm with the activation that follows it."""

    fuse_relu_depthwise_conv: bool = False
    enable_auto_fusion: bool = False
    """Whether to enable both kinds of fusion."""

    fuse_all_optimizer_ops: bool = False
    fuse_broadcast_ops: bool = True
    sync_batch_norm: bool = False
    enable_inplace: bool = True
    memory_optimize: bool | None = None
    enable_sequential_execution: bool = False
    enable_backward_optimizer_op_deps: bool = True
    remove_unnecessary_lock: bool = True
    cache_runtime_context: bool = False
    num_trainers: int = 1
    trainer_id: int = 0
    trainers_endpoints: list[str] = field(default_factory=list)
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    is_distribution: bool = False
    async_mode: bool = False
    """Whether a worker's threads take batches independently."""

    debug_graphviz_path: str = ""


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
