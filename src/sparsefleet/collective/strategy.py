"""The settings of collective training, validated at construction."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import is_number, require, require_bool, require_int, require_positive

__all__ = ["AmpConfig", "CollectiveStrategy", "LocalSgdConfig"]

_MANY = 2**31 - 1
_MEMORY_FLAG = "FLAGS_fuse_parameter_memory_size"
_GROUPS_FLAG = "FLAGS_fuse_parameter_groups_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSgdConfig:
    """Each rank trains on its own for some steps, then all ranks average their parameters.

    Nothing is sent in between. As in Fluid, optimizer state (momentum) stays local.
    """

    warm_steps: int = 0
    """Number of synchronous optimizer steps before LocalSGD starts."""

    steps: int = 4
    """Steps from one averaging to the next. With larger values, less is sent but accuracy drops."""

    adaptive: bool = False
    """Adapt the interval to the loss, as in AdaComm (Wang and Joshi, 2019): ceil(steps * sqrt(loss
    / first loss)), which makes ranks average more often as the loss falls."""

    max_steps: int = 16
    """The largest interval that ``adaptive`` may choose."""

    def __post_init__(self) -> None:
        require_int(self, "warm_steps", 0, _MANY)
        require_int(self, "steps", 1, _MANY)
        require_bool(self, "adaptive")
        require_int(self, "max_steps", 1, _MANY)
        if self.adaptive:
            require(self.steps <= self.max_steps, self, "steps", f"<= max_steps {self.max_steps}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AmpConfig:
    """Mixed precision: parameters and updates in float32, most other computation in 16 bits.

    The defaults match Fluid's ``decorate``.
    """

    dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """The 16-bit type; "auto" is bfloat16 on a CPU and float16 on a GPU."""

    init_loss_scaling: float = 2.0**15
    """The initial factor by which the loss is multiplied and gradients are divided."""

    dynamic: bool = True
    """Adjust the scale on overflow. If False, the scale is fixed and overflow goes undetected."""

    incr_every_n_steps: int = 1000
    """The scale grows after more than this many consecutive steps without overflow."""

    decr_every_n_nan_or_inf: int = 2
    """The scale shrinks after more than this many consecutive overflows."""

    incr_ratio: float = 2.0
    """Factor by which the scale grows."""

    decr_ratio: float = 0.8
    """Factor by which the scale shrinks, down to 1."""

    float32_modules: tuple[str, ...] = ()
    """Names of submodules that always run in float32; "" is the whole model."""

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
    """How ranks train a model together.

    >>> CollectiveStrategy(fuse_memory_mb=16, num_rings=2).fuse_bytes()
    16777216
    """

    fuse_all_reduce: bool = True
    """Send gradients in buckets. If False, use one all-reduce per gradient."""

    fuse_memory_mb: float | None = None
    """A bucket takes whole layers until it holds this many MB. -1 means one bucket per layer. None
    uses the environment variable FLAGS_fuse_parameter_memory_size. If that is not set, Fluid
    programs use one bucket per layer, and for torch modules, a bucket holds a tenth of all
    gradients but at least 4 MB.
    """

    fuse_groups: int | None = None
    """A bucket takes whole layers until it holds more than this many gradients. 1 means that there
    is no such limit, and -1 means one bucket for all gradients. None uses the environment variable
    FLAGS_fuse_parameter_groups_size, or 1 if it is not set.
    """

    num_rings: int = 1
    """Number of process groups that all-reduces use in turn, without waiting for each other. Fluid
    recommends 1 on one machine and 2 on several.
    """

    hierarchical: bool = False
    """Sum within each node, then among the first ranks of the nodes, then broadcast within each
    node, which reduces traffic between nodes.
    """

    ranks_per_node: int = 0
    """Ranks per node, for ``hierarchical``. 0 means the number that the launcher started on each
    node.
    """

    local_sgd: LocalSgdConfig | None = None
    """Average parameters every few steps instead of gradients in each step."""

    amp: AmpConfig | None = None
    """Mixed precision and loss scaling."""

    gradient_merge_steps: int = 1
    """Number of batches whose gradients are added up before ranks exchange them and take an
    optimizer step.
    """

    gradient_merge_average: bool = True
    """Average the gradients of merged batches. If False, sum them."""

    recompute: tuple[str, ...] = ()
    """Names of submodules whose activations are recomputed in the backward pass instead of being
    kept, which takes less memory but more time.
    """

    sync_batch_norm: bool = False
    """Normalize batches with the statistics of all ranks."""

    compile: bool = False
    """Fuse kernels with torch.compile. Without a C++ compiler, warn and do not fuse."""

    timeout_s: float = 300.0
    """Maximum wait for other ranks, after which an error names the missing ranks."""

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
                "CollectiveStrategy: sync_batch_norm exchanges statistics in every batch, but "
                "local_sgd exchanges nothing for several batches; use only one of them"
            )
        if self.local_sgd is not None and self.gradient_merge_steps > 1:
            raise ConfigError(
                "CollectiveStrategy: local_sgd and gradient_merge_steps > 1 both delay the "
                "exchange between ranks; use only one of them"
            )

    def fuse_bytes(self, default: int = 0) -> int:
        """Return the number of bytes at which a bucket is full, or 0 if there is no limit.

        Return ``default`` if neither the fields nor the environment set bucket sizes.
        """
        megabytes = self.fuse_memory_mb
        if megabytes is None:
            megabytes = _flag(_MEMORY_FLAG)
        if megabytes is None:
            says_count = self.fuse_groups is not None or _flag(_GROUPS_FLAG) is not None
            return 0 if says_count else default
        return max(0, int(megabytes * 2**20))

    def fuse_count(self) -> int:
        """Return how many gradients fill a bucket; 0 means no limit, and -1 means one bucket."""
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
        raise ConfigError(f"environment variable {name} must be a number, got {text!r}")
    return value


def _require_names(owner: object, field: str) -> None:
    names = getattr(owner, field)
    holds = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    require(holds, owner, field, "a tuple of submodule names")
