"""Specs that describe tables, and their entries in checkpoints."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from sparsefleet import _core
from sparsefleet.checkpoint.manifest import StateColumn, TableEntry
from sparsefleet.errors import UnknownTableError
from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_int,
    require_not_negative,
)
from sparsefleet.store.initializers import Initializer, Normal
from sparsefleet.store.optimizers import (
    Adagrad,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
    check_optimizer,
)

__all__ = [
    "AdmitAlways",
    "AdmitByCount",
    "AdmitByProbability",
    "DenseSpec",
    "Evict",
    "NonFinitePolicy",
    "RowDtype",
    "TableSpec",
    "counter_names",
    "state_names",
    "table_entry",
]

_MAX_UINT32 = 2**32 - 1
_MAX_UINT64 = 2**64 - 1

NonFinitePolicy = Literal["reject_row", "raise"]
RowDtype = Literal["float32", "bf16", "int8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmitAlways:
    """Every key gets a row on its first training pull or push."""


@dataclass(frozen=True, slots=True)
class AdmitByCount:
    """A key gets a row once it has been seen often enough; until then, the key reads as zeros."""

    count: int
    """The number of the training pull, counted from 1, on which a key gets its row."""

    def __post_init__(self) -> None:
        require_int(self, "count", 1, _MAX_UINT32)


@dataclass(frozen=True, slots=True)
class AdmitByProbability:
    """A key gets a row with some probability at each training pull; until then, it reads as 0."""

    probability: float
    """Probability at each training pull; the draw is a pure function of (seed, key, step)."""

    def __post_init__(self) -> None:
        value = self.probability
        require(
            is_number(value) and 0 < value <= 1, self, "probability", "a number with 0 < value <= 1"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Evict:
    """Eviction rules for `shrink()`, which removes rows that match any rule. 0 turns a rule off."""

    untouched_steps: int = 0
    """Remove rows without a push for more than this many steps. Costs 4 bytes per row."""

    untouched_seconds: int = 0
    """Remove rows without a push for more than this many seconds. Costs 4 bytes per row."""

    min_count: int = 0
    """Remove rows with fewer pushes than this. Costs 4 bytes per row."""

    min_norm: float = 0.0
    """Remove rows whose L2 norm is below this."""

    def __post_init__(self) -> None:
        require_int(self, "untouched_steps", 0, _MAX_UINT32)
        require_int(self, "untouched_seconds", 0, _MAX_UINT32)
        require_int(self, "min_count", 0, _core.MAX_COUNT)
        require_not_negative(self, "min_norm")


def _is_table_name(name: object) -> bool:
    """Return whether the name is a string of valid length without control characters."""
    return (
        isinstance(name, str)
        and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
        and 1 <= len(name.encode("utf-8")) <= _core.MAX_TABLE_NAME_BYTES
    )


def _check_shared_fields(spec: TableSpec | DenseSpec) -> None:
    wanted = f"1..{_core.MAX_TABLE_NAME_BYTES} bytes of text without control characters"
    require(_is_table_name(spec.name), spec, "name", wanted)
    check_optimizer(spec.optimizer, f"{type(spec).__name__}.optimizer")
    wanted = " or ".join(repr(policy) for policy in get_args(NonFinitePolicy))
    require(spec.non_finite in get_args(NonFinitePolicy), spec, "non_finite", wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """A sparse table: rows of `dim` values under 64-bit keys, created on first use.

    >>> TableSpec(name="ads", dim=16).optimizer.kind
    'adagrad'
    """

    name: str
    """Unique in a store; up to 255 bytes."""

    dim: int
    """Number of values per row, 1..4096."""

    initializer: Initializer = field(default_factory=Normal)
    """Initial values of a row."""

    optimizer: Optimizer = field(default_factory=Adagrad)
    """How a push updates a row."""

    seed: int = 0
    """Seed for initial values and random admission."""

    admission: AdmitAlways | AdmitByCount | AdmitByProbability = field(default_factory=AdmitAlways)
    """Which keys get a row."""

    eviction: Evict = field(default_factory=Evict)
    """Which rows `shrink()` removes."""

    non_finite: NonFinitePolicy = "reject_row"
    """On NaN or infinity in a gradient, skip and count the row, or reject the whole push."""

    track_count: bool = False
    """Count the pushes to each row (4 bytes per row). An eviction rule turns it on."""

    track_step: bool = False
    """Record the step of each row's last push (4 bytes per row). An eviction rule turns it on."""

    track_seconds: bool = False
    """Record the time of each row's last push (4 bytes per row). An eviction rule turns it on."""

    track_dirty: bool = False
    """Record whether each row changed since the last checkpoint; shares a word with the count."""

    row_dtype: RowDtype = "float32"
    """How rows are stored: 4, 2 ("bf16") or 1 byte per value ("int8", plus 4 bytes per row).

    Pulls, gradients, optimizer state and updates are always float32.
    """

    def __post_init__(self) -> None:
        _check_shared_fields(self)
        require(
            not self.optimizer.needs_norms,
            self,
            "optimizer",
            "an optimizer that updates rows independently; Lars and Lamb need the norm of a "
            "whole parameter",
        )
        require_int(self, "dim", 1, _core.MAX_DIM)
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
        wanted = ", ".join(repr(dtype) for dtype in get_args(RowDtype))
        require(self.row_dtype in get_args(RowDtype), self, "row_dtype", f"one of {wanted}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseSpec:
    """A dense table: one flat float32 array, split into blocks across servers.

    >>> DenseSpec(name="mlp", size=171_201).non_finite
    'raise'
    """

    name: str
    """Unique in a store; up to 255 bytes."""

    size: int
    """Number of float32 elements."""

    optimizer: Optimizer = field(default_factory=Adagrad)
    """How a push updates the array; any optimizer except RowwiseAdagrad, which needs rows.

    Lars and Lamb use the norm of the whole table, so use one table per parameter.
    """

    non_finite: NonFinitePolicy = "raise"
    """On NaN or infinity in a gradient, reject the push ("raise"), or skip and count the push."""

    min_block_size: int = 8192
    """Smallest block, in elements, that is worth an additional server (Fluid's min_block_size)."""

    def __post_init__(self) -> None:
        _check_shared_fields(self)
        require_int(self, "size", 1, _core.MAX_DENSE_SIZE)
        require(
            not isinstance(self.optimizer, RowwiseAdagrad),
            self,
            "optimizer",
            "an optimizer other than RowwiseAdagrad, which needs rows",
        )
        require_int(self, "min_block_size", 1, _MAX_UINT64)
        require(
            not self.optimizer.needs_norms or self.min_block_size >= self.size,
            self,
            "min_block_size",
            "at least `size` with Lars and Lamb, which need the whole parameter on one server",
        )


_NON_FINITE = {
    "reject_row": _core.NonFinitePolicy.reject_row,
    "raise": _core.NonFinitePolicy.raise_error,
}


def _optimizer(fields: Mapping[str, float | bool | str]) -> _core.OptimizerSpec:
    native = _core.OptimizerSpec()
    for name, value in fields.items():
        if name == "kind":
            native.kind = getattr(_core.OptimizerKind, str(value))
        else:
            setattr(native, name, value)
    return native


def lower_table(spec: TableSpec) -> _core.SparseSpec:
    """Return the native form of ``spec``, validated again by native code."""
    native = _core.SparseSpec()
    native.name = spec.name
    native.dim = spec.dim
    native.seed = spec.seed
    initializer = spec.initializer.native_fields(spec.dim)
    native.initializer.kind = getattr(_core.InitializerKind, str(initializer["kind"]))
    native.initializer.a = float(initializer["a"])
    native.initializer.b = float(initializer["b"])
    native.optimizer = _optimizer(spec.optimizer.native_fields())
    if isinstance(spec.admission, AdmitByCount):
        native.admission.kind = _core.AdmissionKind.count
        native.admission.count = spec.admission.count
    elif isinstance(spec.admission, AdmitByProbability):
        native.admission.kind = _core.AdmissionKind.probability
        native.admission.probability = spec.admission.probability
    native.eviction.untouched_steps = spec.eviction.untouched_steps
    native.eviction.untouched_seconds = spec.eviction.untouched_seconds
    native.eviction.min_count = spec.eviction.min_count
    native.eviction.min_norm = spec.eviction.min_norm
    native.non_finite = _NON_FINITE[spec.non_finite]
    native.track_count = spec.track_count
    native.track_step = spec.track_step
    native.track_seconds = spec.track_seconds
    native.track_dirty = spec.track_dirty
    native.row_dtype = getattr(_core.RowDtype, spec.row_dtype)
    native.validate()
    return native


def lower_dense(spec: DenseSpec) -> _core.DenseSpec:
    """Return the native form of ``spec``, validated again by native code."""
    native = _core.DenseSpec()
    native.name = spec.name
    native.size = spec.size
    native.optimizer = _optimizer(spec.optimizer.native_fields())
    native.non_finite = _NON_FINITE[spec.non_finite]
    native.min_block_size = spec.min_block_size
    native.validate()
    return native


def chosen_specs(
    specs: Mapping[str, TableSpec | DenseSpec], names: Collection[str] | None, verb: str
) -> dict[str, TableSpec | DenseSpec]:
    """Return the specs with these names, or all specs if `names` is None.

    Raises UnknownTableError if there are none.
    """
    if names is None and not specs:
        raise UnknownTableError(
            f"no table is defined, so there is nothing to {verb}: call define() first"
        )
    unknown = sorted(set(names or ()) - specs.keys())
    if unknown:
        known = ", ".join(specs)
        raise UnknownTableError(f"no table '{unknown[0]}' to {verb}; defined tables: {known}")
    return {name: spec for name, spec in specs.items() if names is None or name in names}


# Layout as in core/optimizer/row_optimizer.h: arrays as wide as a row, then individual floats.
_STATE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sgd": ((), ()),
    "momentum": (("buffer",), ()),
    "adagrad": (("sum",), ()),
    "rowwise_adagrad": ((), ("sum",)),
    "decayed_adagrad": (("moment",), ()),
    "adam": (("m", "v"), ("step",)),
    "adamw": (("m", "v"), ("step",)),
    "adamax": (("m", "norm"), ("step",)),
    "ftrl": (("squares", "linear"), ()),
    "adadelta": (("square", "delta"), ()),
    "fluid_adadelta": (("square", "delta"), ()),
    "lars": (("velocity",), ()),
    "lamb": (("m", "v"), ()),
}


def state_names(optimizer: Optimizer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of an optimizer's state: arrays as wide as a row, and individual floats.

    >>> from sparsefleet.optim import Adam
    >>> state_names(Adam())
    (('m', 'v'), ('step',))
    """
    if isinstance(optimizer, RMSprop):
        mean = ("mean",) if optimizer.centered else ()
        buffer = ("buffer",) if optimizer.momentum > 0 else ()
        return ("square", *mean, *buffer), ()
    return _STATE[optimizer.kind]


def counter_names(spec: TableSpec) -> tuple[str, ...]:
    """Return the counters that the table keeps per row, in order."""
    keeps = {
        "count": spec.track_count or spec.eviction.min_count > 0,
        "step": spec.track_step or spec.eviction.untouched_steps > 0,
        "seconds": spec.track_seconds or spec.eviction.untouched_seconds > 0,
    }
    return tuple(name for name, is_kept in keeps.items() if is_kept)


def table_entry(spec: TableSpec) -> TableEntry:
    """Return the checkpoint entry for the table, without files.

    >>> from sparsefleet.optim import Adam
    >>> entry = table_entry(TableSpec(name="ads", dim=4, optimizer=Adam()))
    >>> entry.optimizer["kind"], entry.state_width
    ('adam', 9)
    """
    wide, single = state_names(spec.optimizer)
    return TableEntry(
        name=spec.name,
        dim=spec.dim,
        optimizer=spec.optimizer.native_fields(),
        state=(
            *(StateColumn(name, spec.dim) for name in wide),
            *(StateColumn(name, 1) for name in single),
        ),
        counters=counter_names(spec),
        settings={
            "seed": spec.seed,
            "initializer": spec.initializer.native_fields(spec.dim),
            "admission": {"kind": type(spec.admission).__name__, **asdict(spec.admission)},
            "eviction": asdict(spec.eviction),
            "non_finite": spec.non_finite,
            "row_dtype": spec.row_dtype,
        },
    )
