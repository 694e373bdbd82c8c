"""What a user declares of a table."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from typing import Literal, get_args

from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_int,
    require_not_negative,
)
from sparsefleet.store.initializers import Initializer, Normal
from sparsefleet.store.optimizers import Adagrad, Optimizer, RowwiseAdagrad

__all__ = [
    "AdmitAlways",
    "AdmitByCount",
    "AdmitByProbability",
    "DenseSpec",
    "Evict",
    "NonFinitePolicy",
    "TableSpec",
]

# As in core/table/table_spec.h.
MAX_DIM = 4096
MAX_NAME_BYTES = 255
MAX_DENSE_SIZE = 2**56
_MAX_COUNT = 2**31 - 1  # the dirty bit takes the word's last
_MAX_UINT32 = 2**32 - 1
_MAX_UINT64 = 2**64 - 1

NonFinitePolicy = Literal["reject_row", "raise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmitAlways:
    """Every key gets a row on its first training pull or push."""


@dataclass(frozen=True, slots=True)
class AdmitByCount:
    """A key gets a row when it has been seen often enough; before, it reads as zeros."""

    count: int
    """The row is born at this many-th training pull of the key."""

    def __post_init__(self) -> None:
        require_int(self, "count", 1, _MAX_UINT32)


@dataclass(frozen=True, slots=True)
class AdmitByProbability:
    """A key gets a row by chance; before, it reads as zeros."""

    probability: float
    """The chance at each training pull, a pure function of (seed, key, step)."""

    def __post_init__(self) -> None:
        value = self.probability
        require(
            is_number(value) and 0 < value <= 1, self, "probability", "a number with 0 < value <= 1"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Evict:
    """Which rows `shrink()` removes: those for which any rule that is set holds. 0 is not set."""

    untouched_steps: int = 0
    """Not pushed for more than this many steps. Costs 4 bytes a row."""

    untouched_seconds: int = 0
    """Not pushed for more than this many seconds. Costs 4 bytes a row."""

    min_count: int = 0
    """Pushed fewer times than this. Costs 4 bytes a row."""

    min_norm: float = 0.0
    """The L2 norm of the row's values is below this."""

    def __post_init__(self) -> None:
        require_int(self, "untouched_steps", 0, _MAX_UINT32)
        require_int(self, "untouched_seconds", 0, _MAX_UINT32)
        require_int(self, "min_count", 0, _MAX_COUNT)
        require_not_negative(self, "min_norm")


def _is_table_name(name: object) -> bool:
    """Text without control characters and lone surrogates, of the right length as UTF-8."""
    return (
        isinstance(name, str)
        and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
        and 1 <= len(name.encode("utf-8")) <= MAX_NAME_BYTES
    )


def _check_shared_fields(spec: TableSpec | DenseSpec) -> None:
    wanted = f"1..{MAX_NAME_BYTES} bytes of text without control characters"
    require(_is_table_name(spec.name), spec, "name", wanted)
    require(isinstance(spec.optimizer, Optimizer), spec, "optimizer", "a sparsefleet.optim class")
    wanted = " or ".join(repr(policy) for policy in get_args(NonFinitePolicy))
    require(spec.non_finite in get_args(NonFinitePolicy), spec, "non_finite", wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """A sparse table: rows of `dim` float32 under 64-bit keys, born on first use.

    >>> TableSpec(name="ads", dim=16).optimizer.kind
    'adagrad'
    """

    name: str
    """Unique in a store; up to 255 bytes."""

    dim: int
    """Values in a row, 1..4096."""

    initializer: Initializer = field(default_factory=Normal)
    """The first value of a row."""

    optimizer: Optimizer = field(default_factory=Adagrad)
    """How a push changes a row."""

    seed: int = 0
    """Feeds the initial values and admission by chance."""

    admission: AdmitAlways | AdmitByCount | AdmitByProbability = field(default_factory=AdmitAlways)
    """Which keys get a row at all."""

    eviction: Evict = field(default_factory=Evict)
    """Which rows `shrink()` removes."""

    non_finite: NonFinitePolicy = "reject_row"
    """A gradient with NaN or infinity: skip and count that row, or refuse the whole push."""

    track_count: bool = False
    """Keep how often each row was pushed, 4 bytes a row. An eviction rule switches it on."""

    track_step: bool = False
    """Keep the step of each row's last push, 4 bytes a row. An eviction rule switches it on."""

    track_seconds: bool = False
    """Keep the time of each row's last push, 4 bytes a row. An eviction rule switches it on."""

    track_dirty: bool = False
    """Keep whether each row changed since the last checkpoint; shares a word with the count."""

    def __post_init__(self) -> None:
        _check_shared_fields(self)
        require_int(self, "dim", 1, MAX_DIM)
        require(
            isinstance(self.initializer, Initializer),
            self,
            "initializer",
            "a sparsefleet.store initializer",
        )
        require_int(self, "seed", 0, _MAX_UINT64)
        require(
            isinstance(self.admission, (AdmitAlways, AdmitByCount, AdmitByProbability)),
            self,
            "admission",
            "AdmitAlways, AdmitByCount or AdmitByProbability",
        )
        require(isinstance(self.eviction, Evict), self, "eviction", "Evict")
        for flag in ("track_count", "track_step", "track_seconds", "track_dirty"):
            require_bool(self, flag)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseSpec:
    """A dense table: one flat float32 array, dealt over the servers in blocks.

    >>> DenseSpec(name="mlp", size=171_201).non_finite
    'raise'
    """

    name: str
    """Unique in a store; up to 255 bytes."""

    size: int
    """Number of float32 elements."""

    optimizer: Optimizer = field(default_factory=Adagrad)
    """How a push changes the array; any but RowwiseAdagrad, which needs rows."""

    non_finite: NonFinitePolicy = "raise"
    """A gradient with NaN or infinity: refuse the push ("raise"), or skip and count it."""

    min_block_size: int = 8192
    """Elements; fewer are not worth another server (Fluid's min_block_size)."""

    def __post_init__(self) -> None:
        _check_shared_fields(self)
        require_int(self, "size", 1, MAX_DENSE_SIZE)
        require(
            not isinstance(self.optimizer, RowwiseAdagrad),
            self,
            "optimizer",
            "another optimizer than RowwiseAdagrad, which needs rows",
        )
        require_int(self, "min_block_size", 1, _MAX_UINT64)
