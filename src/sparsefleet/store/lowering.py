"""Converts the specs that users write to the structs of the native code."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet import _core
from sparsefleet.store.table_spec import (
    AdmitByCount,
    AdmitByProbability,
    DenseSpec,
    TableSpec,
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
