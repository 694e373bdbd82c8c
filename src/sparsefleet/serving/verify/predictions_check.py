"""Check 4: the offline and online models make the same predictions for the same examples.

In shapes, B is the number of examples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import SparseFleetError
from sparsefleet.metrics import AUC
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.golden import largest_difference
from sparsefleet.serving.export.keyed_rows import RowSource, Tables
from sparsefleet.serving.export.onnx_engine import OnnxEngine, is_installed
from sparsefleet.serving.verify.case import Case, Examples, ModelTable, OfflineModel, joined
from sparsefleet.serving.verify.report import CheckResult, Figures, Finding
from sparsefleet.serving.verify.row_comparison import (
    FetchedRows,
    KeyRecorder,
    PickedRows,
    as_exported,
)
from sparsefleet.serving.verify.side import FoundRows, Side, Trace
from sparsefleet.store.arrays import Floats, Keys

__all__ = [
    "FirstDifference",
    "PredictionsCheck",
    "SidePrediction",
    "differences",
    "find_first_difference",
]


class FirstDifference(NamedTuple):
    """The layers in order, and the first layer that differs."""

    layer: str
    """Description of the first layer that differs."""
    steps: list[tuple[str, float]]
    """The layers that both sides report, each with its largest difference."""


def find_first_difference(
    offline: Trace, online: Trace, tolerance: float
) -> FirstDifference | None:
    """Return the first layer that differs by more than a tenth of the tolerance.

    Lookups must be exactly equal. Returns None if all layers that both sides report agree.
    """
    for name, array in offline.inputs.items():
        other = online.inputs.get(name)
        if other is None or _gap(array, other) > 0:
            return FirstDifference(f"input '{name}', before the model", [])
    theirs = {layer.name: layer for layer in online.layers}
    steps: list[tuple[str, float]] = []
    parted = None
    for layer in offline.layers:
        other_layer = theirs.get(layer.name)
        if other_layer is None:
            continue
        gap = _gap(layer.values, other_layer.values)
        allowed = 0.0 if layer.what.startswith("look_up(") else tolerance / 10
        summary = f"{layer.what} ({layer.name})"
        steps.append((summary, gap))
        if parted is None and gap > allowed:
            parted = summary
    if parted is None:
        only = [layer for layer in offline.layers if layer.name not in theirs]
        if not only or not online.layers:
            return None
        parted = f"{only[0].what} ({only[0].name}), which exists only offline"
    return FirstDifference(parted, steps)


def _gap(one: NDArray[Any], two: NDArray[Any]) -> float:
    """Return the largest difference. Infinity and NaN count as equal, since JSON has neither."""
    if one.shape == two.shape and one.dtype.kind == two.dtype.kind == "f":
        neither = ~np.isfinite(one) & ~np.isfinite(two)
        one, two = np.where(neither, 0, one), np.where(neither, 0, two)
    return largest_difference({"": two}, {"": one})


_BATCH = 512


class SidePrediction:
    """Makes predictions for a case's examples with the side's own rows and parameters."""

    def __init__(self, case: Case, side: Side) -> None:
        self._case = case
        self._side = side
        self._model: OfflineModel | None = None
        self._tables: Tables = {}

    def predict(self) -> Arrays | None:
        """Return all targets, or None if the side has neither predictions nor rows."""
        examples = self._case.examples
        parts = []
        for batch in examples.batches(_BATCH):
            found = self._side.predict(batch)
            if found is None:
                break
            parts.append(found)
        if parts:
            return joined(parts)
        if not self._borrow_graph():
            return None
        assert self._model is not None
        return self._model.predict(examples, self._tables)

    def trace(self, arrays: Arrays) -> Trace | None:
        """Return the intermediate values for a few examples. `predict` must be called first."""
        if self._model is None:
            return self._side.trace(arrays)
        return self._model.trace(arrays, self._tables)

    def _borrow_graph(self) -> bool:
        """Predict with the export's graph, but the side's rows and dense parameters.

        Returns False if the side does not have all tables of the export.
        """
        dense, tables = self._side.dense(), self._side.tables()
        own = self._case.model
        if tables is None or any(
            name not in tables or tables[name].dim != file.entry.dim
            for name, file in own.tables.items()
        ):
            return False
        self._model = own.with_dense(dense or {})
        keys = self._needed_keys()
        self._tables = {name: self._rows(file, keys[name]) for name, file in own.tables.items()}
        return True

    def _needed_keys(self) -> dict[str, Keys]:
        recorders = {name: KeyRecorder(file) for name, file in self._case.model.tables.items()}
        self._case.model.predict(self._case.examples, recorders)
        return {name: recorder.keys for name, recorder in recorders.items()}

    def _rows(self, file: ModelTable, needed: Keys) -> RowSource:
        name = file.entry.name
        parts = self._side.stream(name)
        if parts is None:
            return FetchedRows(file, lambda keys: self._side.fetch(name, keys))
        return PickedRows(file, needed, (self._as_compared(file, part) for part in parts))

    def _as_compared(self, file: ModelTable, part: FoundRows) -> tuple[Keys, Floats]:
        """Return training rows in the export's format, whose loss of precision is expected."""
        if self._side.role == "training":
            return part.keys, as_exported(file, part.keys, part.values)
        return part.keys, part.values


_EXAMPLES = 5


class PredictionsCheck:
    """Compares the scores of both engines and of the side, including scores for golden examples."""

    def of_export(self, case: Case) -> CheckResult:
        """Compare both engines of the export with the trained model."""
        model, golden = case.model.as_exported(), case.model.golden
        found = {"torch": model.predict(Examples.of_golden(model.schema, golden))}
        onnx = model.manifest.onnx
        if onnx.steps and is_installed():
            engine = OnnxEngine(model.directory, onnx.steps, model.schema)
            found["onnx"] = engine.predict(golden.inputs, model.tables)
        allowed = model.manifest.golden.largest_error + case.config.tolerance
        findings, summary = [], []
        for name, scores in found.items():
            gap = largest_difference(scores, golden.targets)
            summary.append(f"{name} {gap:.2g}")
            if not gap <= allowed:
                findings.append(
                    Finding(
                        name="golden examples differ",
                        what=f"engine {name}",
                        found=f"scores off by up to {gap:.3g} from the trained model",
                        wanted=f"at most {allowed:.3g}",
                        advice="predictions differ from the trained model's; export again",
                    )
                )
        text = f"{golden.examples} golden examples, largest difference: {', '.join(summary)}"
        return CheckResult.of("predictions", model.name, text, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        prediction = SidePrediction(case, side)
        try:
            online = prediction.predict()
        except SparseFleetError as error:
            failed = Finding(
                name="no predictions",
                what=side.name,
                found=str(error),
                wanted=f"scores of {case.examples.count:,} examples",
            )
            return CheckResult.of("predictions", side.name, "none", [failed])
        if online is None:
            return None
        offline = case.scores
        figures: Figures = {"offline": _first(offline), "online": _first(online)}
        gaps = differences(offline, online)
        figures["differences"] = gaps
        summary = (
            f"{case.examples.count:,} examples, largest difference {gaps.max(initial=0.0):.2g}, "
        )
        summary += f"mean {gaps.mean() if len(gaps) else 0.0:.2g}"
        summary += _aucs(case, side, (offline, online), figures)
        findings = []
        if (gaps > case.config.tolerance).any():
            first = _first_difference(case, prediction, gaps)
            figures["first_difference"] = first
            findings.append(_differ(case, side, (offline, online), gaps, first))
        return CheckResult.of("predictions", side.name, summary, findings, figures)


def differences(offline: Arrays, online: Arrays) -> NDArray[np.float64]:
    """Return the largest difference for each example, float64[B], relative for scores above 1.

    The difference is inf if a target is missing, has a different shape, or is NaN on only one side.

    >>> differences({"p": np.array([0.5, 20.0])}, {"p": np.array([0.25, 20.0])})
    array([0.25, 0.  ])
    """
    count = max(len(value) for value in offline.values())
    largest = np.zeros(count)
    for name, value in offline.items():
        other = online.get(name)
        if other is None or other.shape != value.shape:
            return np.full(count, np.inf)
        one, two = value.astype(np.float64), other.astype(np.float64)
        same = (one == two) | (np.isnan(one) & np.isnan(two))
        with np.errstate(invalid="ignore"):
            gap = np.abs(one - two) / np.maximum(1.0, np.abs(one))
        gap = np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf))
        largest = np.maximum(largest, gap.reshape(count, -1).max(axis=1, initial=0.0))
    return largest


def _first(scores: Arrays) -> NDArray[np.float64]:
    """Return the first number of the first target, for charts: float64[B]."""
    first = next(iter(scores.values()))
    return first.reshape(len(first), -1)[:, 0].astype(np.float64)


def _aucs(case: Case, side: Side, both: tuple[Arrays, Arrays], figures: Figures) -> str:
    labels = case.examples.labels
    if labels is None:
        return ""
    found = []
    for scores in both:
        first = _first(scores)
        if not (np.isfinite(first).all() and first.min() >= 0 and first.max() <= 1):
            first = 1.0 / (
                1.0 + np.exp(-np.nan_to_num(first))
            )  # logits; the conversion keeps their order
        auc = AUC(2**20)
        auc.update(first, labels)
        found.append(auc.compute())
    figures["auc"] = tuple(found)
    return f", AUC {found[0]:.6f} offline, {found[1]:.6f} {_word(side)}"


def _word(side: Side) -> str:
    return "trained" if side.role == "training" else "online"


def _first_difference(
    case: Case, prediction: SidePrediction, gaps: NDArray[np.float64]
) -> FirstDifference | None:
    """Find the layer where the first differing example differs."""
    at = int(np.flatnonzero(gaps > case.config.tolerance)[0])
    arrays = case.examples.part(at, at + 1)
    online = prediction.trace(arrays)
    if online is None:
        return None
    return find_first_difference(case.model.trace(arrays), online, case.config.tolerance)


def _differ(
    case: Case,
    side: Side,
    both: tuple[Arrays, Arrays],
    gaps: NDArray[np.float64],
    first: FirstDifference | None,
) -> Finding:
    wrong = np.flatnonzero(gaps > case.config.tolerance)
    left, right = map(_first, both)
    examples = [
        f"example {at}: offline {left[at]:.6g}, {_word(side)} {right[at]:.6g}"
        for at in wrong[:_EXAMPLES]
        if at < len(right)
    ]
    found = f"{len(wrong):,} of {len(gaps):,} examples differ, by up to {gaps.max():.3g}"
    if first is not None:
        found += f"; the first difference is at {first.layer}"
    return Finding(
        name="scores differ",
        what=f"target '{next(iter(both[0]))}'",
        found=found,
        wanted=f"at most {case.config.tolerance:g}",
        examples=tuple(examples),
    )
