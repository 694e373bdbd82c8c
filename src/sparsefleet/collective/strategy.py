"""What is asked of collective training: one frozen object, checked when it is made."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_int,
    require_positive,
)

__all__ = ["AmpConfig", "CollectiveStrategy", "LocalSgdConfig"]

_MANY = 2**31 - 1
_MEMORY_FLAG = "FLAGS_fuse_parameter_memory_size"
_GROUPS_FLAG = "FLAGS_fuse_parameter_groups_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSgdConfig:
    """Ranks train alone for some steps and then average their parameters.

    Between two averagings nothing is sent at all. State of optimizers (momentum) stays with
    its rank, as in Fluid.
    """

    warm_steps: int = 0
    """Optimizer steps of synchronous training before that."""

    steps: int = 4
    """Steps between two averagings. Larger: less traffic and waiting, less accurate."""

    adaptive: bool = False
    """The interval follows the loss, as in AdaComm (Wang and Joshi, 2019): it is
    ceil(steps * sqrt(loss / first loss)), so that ranks meet more often as training settles."""

    max_steps: int = 16
    """Largest interval with ``adaptive``."""

    def __post_init__(self) -> None:
        require_int(self, "warm_steps", 0, _MANY)
        require_int(self, "steps", 1, _MANY)
        require_bool(self, "adaptive")
        require_int(self, "max_steps", 1, _MANY)
        if self.adaptive:
            require(self.steps <= self.max_steps, self, "steps", f"<= max_steps {self.max_steps}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AmpConfig:
    """Mixed precision: parameters and their updates in float32, much of the rest in 16 bits.

    The defaults are those of Fluid's ``decorate``.
    """

    dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """What 16 bits are: "auto" takes bfloat16 on a CPU, float16 on a GPU."""

    init_loss_scaling: float = 2.0**15
    """What the loss is multiplied by, and gradients divided by, at first."""

    dynamic: bool = True
    """Whether the scale follows overflows; without it nothing is checked either."""

    incr_every_n_steps: int = 1000
    """The scale grows after more than so many steps in a row without an overflow."""

    decr_every_n_nan_or_inf: int = 2
    """The scale shrinks after more than so many overflows in a row."""

    incr_ratio: float = 2.0
    """Factor by which the scale grows."""

    decr_ratio: float = 0.8
    """Factor by which the scale shrinks, to 1 at the least."""

    float32_modules: tuple[str, ...] = ()
    """Names of submodules that run in float32 throughout; "" is the whole model."""

    def __post_init__(self) -> None:
        kinds = ("auto", "bfloat16", "float16")
        require(self.dtype in kinds, self, "dtype", f"one of {', '.join(kinds)}")
        require_positive(self, "init_loss_scaling")
        require_bool(self, "dynamic")
        require_int(self, "incr_every_n_steps", 1, _MANY)
        require_int(self, "decr_every_n_nan_or_inf", 0, _MANY)
        holds = is_number(self.incr_ratio) and self.incr_ratio > 1
        require(holds, self, "incr_ratio", "a finite number > 1")
        holds = is_number(self.decr_ratio) and 0 < self.decr_ratio < 1
        require(holds, self, "decr_ratio", "a number between 0 and 1")
        _require_names(self, "float32_modules")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveStrategy:
    """How ranks train one model together.

    >>> CollectiveStrategy(fuse_memory_mb=16, num_rings=2).fuse_bytes()
    16777216
    """

    fuse_all_reduce: bool = True
    """Whether gradients travel in buckets; else one all-reduce for each gradient."""

    fuse_memory_mb: float | None = None
    """A bucket takes whole layers until it holds that many MB. -1: a bucket for each layer.
    None: the environment's FLAGS_fuse_parameter_memory_size, else what suits the caller: Fluid
    programs have a bucket for each layer, torch modules a tenth of all gradients, at least 4 MB."""

    fuse_groups: int | None = None
    """A bucket takes whole layers until it holds more than that many gradients. 1: no such rule;
    -1: all in one bucket. None: the environment's FLAGS_fuse_parameter_groups_size, else 1."""

    num_rings: int = 1
    """Process groups over which all-reduces are dealt in turn; they do not wait for each other.
    Fluid's advice: 1 on one machine, 2 on several."""

    hierarchical: bool = False
    """Sum inside each node, among the first ranks of the nodes, and hand back inside the node:
    less traffic between nodes."""

    ranks_per_node: int = 0
    """Ranks of a node, for ``hierarchical``. 0: as many as the launcher started on one."""

    local_sgd: LocalSgdConfig | None = None
    """Average parameters now and then, instead of gradients in each step."""

    amp: AmpConfig | None = None
    """Mixed precision and loss scaling."""

    gradient_merge_steps: int = 1
    """Batches whose gradients are added up before ranks exchange them and the optimizer steps."""

    gradient_merge_average: bool = True
    """Whether the gradients of merged batches are averaged; else summed."""

    recompute: tuple[str, ...] = ()
    """Names of submodules whose activations are computed again in the backward pass instead of
    being kept: less memory, more time."""

    sync_batch_norm: bool = False
    """Batch normalisation with the statistics of all ranks' batches."""

    compile: bool = False
    """Kernel fusion through torch.compile; off, and said once, where there is no compiler."""

    timeout_s: float = 300.0
    """Longest wait for other ranks; the error names who is missing."""

    def __post_init__(self) -> None:
        for field in (
            "fuse_all_reduce",
            "hierarchical",
            "gradient_merge_average",
            "sync_batch_norm",
            "compile",
        ):
            require_bool(self, field)
        for field, kind in (("local_sgd", LocalSgdConfig), ("amp", AmpConfig)):
            holds = isinstance(getattr(self, field), kind | None)
            require(holds, self, field, f"{kind.__name__}(...) (its fields have defaults) or None")
        if self.fuse_memory_mb is not None:
            require(is_number(self.fuse_memory_mb), self, "fuse_memory_mb", "a finite number")
        if self.fuse_groups is not None:
            require_int(self, "fuse_groups", -1, _MANY)
        require_int(self, "num_rings", 1, 64)
        require_int(self, "ranks_per_node", 0, _MANY)
        require_int(self, "gradient_merge_steps", 1, _MANY)
        require_positive(self, "timeout_s")
        _require_names(self, "recompute")
        if self.local_sgd is not None and self.sync_batch_norm:
            raise ConfigError(
                "CollectiveStrategy: sync_batch_norm exchanges statistics in every batch, while "
                "local_sgd exchanges nothing for several; use one of them"
            )
        if self.local_sgd is not None and self.gradient_merge_steps > 1:
            raise ConfigError(
                "CollectiveStrategy: local_sgd and gradient_merge_steps > 1 both put off what "
                "ranks exchange; use one of them"
            )

    def fuse_bytes(self, default: int = 0) -> int:
        """Bytes at which a bucket is full; 0 if there is no such rule. ``default`` is taken if
        neither the fields nor the environment say anything of buckets."""
        megabytes = self.fuse_memory_mb
        if megabytes is None:
            megabytes = _flag(_MEMORY_FLAG)
        if megabytes is None:
            says_count = self.fuse_groups is not None or _flag(_GROUPS_FLAG) is not None
            return 0 if says_count else default
        return max(0, int(megabytes * 2**20))

    def fuse_count(self) -> int:
        """Gradients over which a bucket is full; 0 if there is no such rule, -1 for all in one."""
        groups = self.fuse_groups
        if groups is None:
            groups = int(_flag(_GROUPS_FLAG) or 1)
        return -1 if groups < 0 else groups if groups > 1 else 0


def _flag(name: str) -> float | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"the environment's {name} must be a number, got {text!r}")
    return value


def _require_names(owner: object, field: str) -> None:
    names = getattr(owner, field)
    holds = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    require(holds, owner, field, "a tuple of names of submodules")
