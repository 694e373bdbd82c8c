"""Derives a table's checkpoint entry from its spec."""

from __future__ import annotations

from dataclasses import asdict

from sparsefleet.checkpoint.manifest import StateColumn, TableEntry
from sparsefleet.store.optimizers import Optimizer, RMSprop
from sparsefleet.store.table_spec import TableSpec

__all__ = ["counter_names", "state_names", "table_entry"]

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
