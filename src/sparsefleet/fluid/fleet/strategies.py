"""Fluid's strategies, each a training mode with five configs, also for torch optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fleet.fleet_model import FleetModel
from sparsefleet.fluid.fleet.settings import (
    BuildStrategy,
    DistributeTranspilerConfig,
    ExecutionStrategy,
    ModeName,
    ServerRuntimeConfig,
    Settings,
    TrainerRuntimeConfig,
    cpu_num,
    unknown_field,
)
from sparsefleet.modes import AsyncConfig, GeoConfig, ModeConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.fleet_model import ScheduleLike

__all__ = [
    "AsyncStrategy",
    "DistributedOptimizer",
    "DistributedStrategy",
    "DistributedStrategyFactory",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "StrategyFactory",
    "SyncStrategy",
    "distributed_optimizer",
    "mode_of_strategy",
    "strategy_from",
    "threads_of_strategy",
]


SettingsKind = TypeVar("SettingsKind", bound=Settings)

_DEBUG_DEFAULTS: dict[str, object] = {
    "dump_slot": 0,
    "dump_converter": "",
    "dump_fields": [],
    "dump_file_num": 16,
    "dump_fields_path": "",
    "dump_param": [],
}


def _flags(
    half_async: bool = False, completely_not_async: bool = False, geo_sgd_mode: bool = False
) -> dict[str, object]:
    """Return the fields of a DistributeTranspilerConfig that define a mode."""
    return locals()


class DistributedStrategy:
    """A training mode and its configs.

    `get_X()` returns the live config, to be changed in place. `set_X()` takes a whole config or a
    dict of fields. Neither can change the values that define the mode, which are always restored.
    """

    mode_name: ClassVar[ModeName]
    """The name of the mode, one of four."""

    _program_values: ClassVar[dict[str, object]] = {}
    _execute_values: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy = ExecutionStrategy(num_threads=cpu_num())
        self._build_strategy = BuildStrategy()
        if cpu_num() > 1:
            self._build_strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
        self._debug_opt: dict[str, object] | None = None
        self.impose()

    def impose(self) -> None:
        """Restore, in all configs, the values that define the training mode."""
        for name, value in self._imposed_program_values().items():
            setattr(self._program_config, name, value)
        for name, value in self._execute_values.items():
            setattr(self._execute_strategy, name, value)
        self._build_strategy.async_mode = True
        self._trainer_runtime_config.mode = self.mode_name

    def _imposed_program_values(self) -> dict[str, object]:
        # In this order, because each of the two may be True only while the other is False.
        return {"sync_mode": False, "runtime_split_send_recv": True, **self._program_values}

    def get_program_config(self) -> DistributeTranspilerConfig:
        return self._program_config

    def set_program_config(self, config: DistributeTranspilerConfig | Mapping[str, object]) -> None:
        imposed = self._imposed_program_values()
        self._program_config = _changed(self._program_config, config, imposed)
        self.impose()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        return self._trainer_runtime_config

    def set_trainer_runtime_config(
        self, config: TrainerRuntimeConfig | Mapping[str, object]
    ) -> None:
        """Set the config, or update it from a dict with the keys of `runtime_configs`."""
        if isinstance(config, TrainerRuntimeConfig):
            self._trainer_runtime_config = config
        elif isinstance(config, Mapping):
            self._trainer_runtime_config.update(config)
        else:
            raise _wrong_type(TrainerRuntimeConfig, config)
        self.impose()

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        return self._server_runtime_config

    def set_server_runtime_config(self, config: ServerRuntimeConfig | Mapping[str, object]) -> None:
        self._server_runtime_config = _changed(self._server_runtime_config, config, {})
        self.impose()

    def get_execute_strategy(self) -> ExecutionStrategy:
        return self._execute_strategy

    def set_execute_strategy(self, config: ExecutionStrategy | Mapping[str, object]) -> None:
        imposed = self._execute_values
        self._execute_strategy = _changed(self._execute_strategy, config, imposed)
        self.impose()

    def get_build_strategy(self) -> BuildStrategy:
        return self._build_strategy

    def set_build_strategy(self, config: BuildStrategy | Mapping[str, object]) -> None:
        self._build_strategy = _changed(self._build_strategy, config, {"async_mode": True})
        self.impose()

    def get_debug_opt(self) -> dict[str, object] | None:
        """Return the debug options of `train_from_dataset`, or None if not set."""
        return None if self._debug_opt is None else dict(self._debug_opt)

    def set_debug_opt(self, opt_info: Mapping[str, object]) -> None:
        if not isinstance(opt_info, Mapping):
            raise TypeError(f"debug options must be a dict, got {type(opt_info).__name__}")
        for name in opt_info:
            if name not in _DEBUG_DEFAULTS:
                raise unknown_field("debug options", name, _DEBUG_DEFAULTS)
        self._debug_opt = {**_DEBUG_DEFAULTS, **opt_info}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class SyncStrategy(DistributedStrategy):
    """All workers step together; the servers apply the mean of the workers' gradients."""

    mode_name = "sync"
    _program_values = _flags(half_async=True, completely_not_async=True)
    _execute_values: ClassVar[dict[str, object]] = {"use_thread_barrier": True}


class HalfAsyncStrategy(DistributedStrategy):
    """A worker's threads step together; workers do not wait for each other."""

    mode_name = "half_async"
    _program_values = _flags(half_async=True)
    _execute_values: ClassVar[dict[str, object]] = {"use_thread_barrier": True}


class AsyncStrategy(DistributedStrategy):
    """Workers and threads never wait for each other."""

    mode_name = "async"
    _program_values = _flags()


class GeoStrategy(DistributedStrategy):
    """Workers train on local copies and exchange their changes periodically."""

    mode_name = "geo"
    _program_values = _flags(geo_sgd_mode=True)

    def __init__(self, update_frequency: int = 100) -> None:
        is_int = isinstance(update_frequency, int) and not isinstance(update_frequency, bool)
        if not is_int or update_frequency < 1:
            raise ConfigError(
                f"update_frequency must be an int >= 1 (batches between exchanges), "
                f"got {update_frequency!r}"
            )
        super().__init__()
        self._program_config.geo_sgd_need_push_nums = update_frequency


class StrategyFactory:
    """Creates strategies; also available as DistributedStrategyFactory.

    >>> StrategyFactory.create_geo_strategy(update_frequency=400).mode_name
    'geo'
    """

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        return SyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        return HalfAsyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        return AsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        return GeoStrategy(update_frequency)


DistributedStrategyFactory = StrategyFactory


def strategy_from(
    given: DistributedStrategy | DistributeTranspilerConfig | None,
) -> DistributedStrategy:
    """Return the strategy for a script's argument, as Fluid 1.8.5 interprets it.

    None means sync. A config without a strategy means sync if its `sync_mode` is set, and
    half-async if gradients are not split at run time; otherwise its flags decide. Raises TypeError
    for anything else.
    """
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributedStrategy):
        return given
    if not isinstance(given, DistributeTranspilerConfig):
        raise TypeError(
            "strategy must come from StrategyFactory or be a DistributeTranspilerConfig, "
            f"got {type(given).__name__}"
        )
    strategy = _strategy_of_flags(given)
    strategy.set_program_config(given)
    return strategy


def _strategy_of_flags(config: DistributeTranspilerConfig) -> DistributedStrategy:
    if config.sync_mode:
        return SyncStrategy()
    if not config.runtime_split_send_recv:
        return HalfAsyncStrategy()
    if config.geo_sgd_mode:
        return GeoStrategy(config.geo_sgd_need_push_nums)
    return HalfAsyncStrategy() if config.half_async else AsyncStrategy()


def _changed(
    live: SettingsKind, given: SettingsKind | Mapping[str, object], imposed: Mapping[str, object]
) -> SettingsKind:
    """Return `given` or, if it is a dict, `live` updated from it except for imposed fields."""
    if isinstance(given, type(live)):
        return given
    if not isinstance(given, Mapping):
        raise _wrong_type(type(live), given)
    for name in imposed.keys() & given.keys():
        given = {key: value for key, value in given.items() if key != name}
    live.update(given)
    return live


def _wrong_type(wanted: type, found: object) -> TypeError:
    return TypeError(f"config must be a {wanted.__name__} or a dict, got {type(found).__name__}")


_NAP_S = 0.01  # how long Fluid's sender sleeps per unit of send_wait_times


def mode_of_strategy(strategy: DistributedStrategy) -> str | ModeConfig:
    """Return the training mode, with the settings of the strategy's trainer runtime config.

    In async mode, whether merged gradients are added or averaged depends on the optimizer, unless
    communicator_is_sgd_optimizer is "0".
    """
    flags = strategy.get_trainer_runtime_config().get_communicator_flags()
    if strategy.mode_name == "geo":
        steps = strategy.get_program_config().geo_sgd_need_push_nums
        return GeoConfig(push_interval_steps=steps)
    if strategy.mode_name != "async":
        return strategy.mode_name
    return AsyncConfig(
        max_merge=int(flags["communicator_max_merge_var_num"]),
        queue_size=int(flags["communicator_send_queue_size"]),
        wait_s=int(flags["communicator_send_wait_times"]) * _NAP_S,
        steps_before_refresh=int(flags["communicator_min_send_grad_num_before_recv"]),
        merge="mean" if flags["communicator_is_sgd_optimizer"] == "0" else "auto",
    )


def threads_of_strategy(strategy: DistributedStrategy) -> int:
    """Return the number of training threads in a worker."""
    return int(strategy.get_execute_strategy().num_threads)


def distributed_optimizer(
    fleet: Fleet,
    optimizer: torch.optim.Optimizer | optim.Optimizer,
    strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    *,
    model: nn.Module,
    schedule: ScheduleLike | None = None,
) -> DistributedOptimizer:
    """Bind a torch model, like `Fleet.distribute`, but with one of Fluid's strategies.

    If the strategy is None, training is synchronous.
    """
    if not fleet.is_initialized:
        raise ConfigError("fleet is not initialized; call fleet.init() first")
    strategy = strategy_from(strategy)
    distributed = fleet.distribute(
        model,
        optimizer,
        mode_of_strategy(strategy),
        threads=threads_of_strategy(strategy),
        schedule=schedule,
    )
    return DistributedOptimizer(optimizer, strategy, distributed)


class DistributedOptimizer:
    """An optimizer whose steps are performed by the fleet's mode.

    Inside `with fleet.step():`, `minimize(loss)` is `loss.backward()` with checks; the gradients
    are sent when the step ends.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        strategy: DistributedStrategy,
        distributed: FleetModel,
    ) -> None:
        self.optimizer = optimizer
        self.strategy = strategy
        self.distributed = distributed

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return a torch optimizer's parameter groups; a `sparsefleet.optim` object has none."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer.param_groups
        return []

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a scalar loss."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ConfigError(
                f"loss must be a tensor with one element, got {found}; reduce it with .mean()"
            )
        torch.autograd.backward(loss)

    def minimize(self, loss: torch.Tensor) -> None:
        """Call `backward`. The update follows when the step ends."""
        self.backward(loss)
