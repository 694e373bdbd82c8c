"""FLAGS_ settings, which Fluid reads from the environment on import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from sparsefleet.errors import ConfigError

__all__ = ["Flags", "checks_nan_inf", "get_flags", "given_flag", "set_flags"]

_given: dict[str, Any] = {}

_DEFAULTS: dict[str, Any] = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_benchmark": False,
    "FLAGS_check_nan_inf": False,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False,
    "FLAGS_cudnn_deterministic": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_enable_parallel_graph": False,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_fuse_parameter_groups_size": 3,
    "FLAGS_fuse_parameter_memory_size": -1.0,
    "FLAGS_gpu_memory_limit_mb": 0,
    "FLAGS_inner_op_parallelism": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_reader_queue_speed_test_mode": False,
    "FLAGS_rpc_deadline": 180000,
    "FLAGS_rpc_retry_times": 3,
    "FLAGS_selected_gpus": "",
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_mkldnn": False,
    "FLAGS_use_pinned_memory": True,
    "FLAGS_use_system_allocator": False,
}


_PRIVATE = frozenset({"FLAGS_free_idle_chunk", "FLAGS_free_when_no_cache_hit"})


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags whose names start with FLAGS_.

    FLAGS_check_nan_inf makes later runs fail at the first operator whose result is not finite.
    FLAGS_fuse_parameter_memory_size and FLAGS_fuse_parameter_groups_size apply to collective
    programs that have not run yet, and override the environment. Other flags concern Fluid's own
    memory and kernels; they have no effect here, but can be read back.

    >>> set_flags({"FLAGS_eager_delete_tensor_gb": 1.0})
    >>> get_flags("FLAGS_eager_delete_tensor_gb")
    {'FLAGS_eager_delete_tensor_gb': 1.0}
    """
    if not isinstance(flags, Mapping):
        raise TypeError(f"set_flags takes a dict, got {flags!r}")
    for name, value in flags.items():
        if not str(name).startswith("FLAGS_"):
            raise ValueError(f"a flag name must start with FLAGS_, got {name!r}")
        if name in _PRIVATE:
            raise ValueError(f"flag {name} cannot be set by set_flags; set it in the environment")
        _given[name] = value


def given_flag(name: str) -> float | None:
    """Return the number that was set with `set_flags`, or None if the flag was not set."""
    value = _given.get(name)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"set_flags: {name} must be a number, got {value!r}") from None


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """Return flags as set with `set_flags` or in the environment, or their defaults.

    Raises ValueError for a flag that was not set and has no default.
    """
    if isinstance(flags, str):
        names = [flags]
    elif isinstance(flags, (list, tuple)):
        names = list(flags)
    else:
        raise TypeError(f"get_flags takes a name or a list of names, got {flags!r}")
    found = {}
    for name in names:
        value = _given.get(name, os.environ.get(name, _DEFAULTS.get(name)))
        if value is None:
            raise ValueError(f"flag {name!r} was not set by set_flags or in the environment")
        found[name] = value
    return found


def checks_nan_inf() -> bool:
    """Return whether non-finite results are errors."""
    value = get_flags("FLAGS_check_nan_inf")["FLAGS_check_nan_inf"]
    return str(value).strip().lower() in ("1", "true", "yes", "on")


class Flags(MutableMapping[str, Any]):
    """A mapping from name to value for all flags.

    >>> Flags()["FLAGS_paddle_num_threads"] = 2
    >>> get_flags("FLAGS_paddle_num_threads")
    {'FLAGS_paddle_num_threads': 2}
    """

    def __getitem__(self, name: str) -> Any:
        try:
            return get_flags(name)[name]
        except ValueError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        set_flags({name: value})

    def __delitem__(self, name: str) -> None:
        del _given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_DEFAULTS, *_given}))

    def __len__(self) -> int:
        return len({*_DEFAULTS, *_given})
