"""Check 4: offline and online say the same of the same examples.

Letters: B examples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import SparseFleetError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.golden import largest_difference
from sparsefleet.export.onnx_engine import OnnxEngine, is_installed
from sparsefleet.metrics import AUC
from sparsefleet.verify.case import Case
from sparsefleet.verify.examples import Examples
from sparsefleet.verify.finding import CheckResult, Figures, Finding
from sparsefleet.verify.parting import Parting, find_parting
from sparsefleet.verify.side import Side
from sparsefleet.verify.side_prediction import SidePrediction

__all__ = ["PredictionsCheck", "differences"]

_EXAMPLES = 5


class PredictionsCheck:
    """Scores of golden examples, of both engines, and of the side."""

    def of_export(self, case: Case) -> CheckResult:
        """The export against the trained model, and its two engines against each other."""
        model, golden = case.model.as_exported(), case.model.golden
        found = {"torch": model.predict(Examples.of_golden(model.schema, golden))}
        onnx = model.manifest.onnx
        if onnx.steps and is_installed():
            engine = OnnxEngine(model.directory, onnx.steps, model.schema)
            found["onnx"] = engine.predict(golden.inputs, model.tables)
        allowed = model.manifest.golden.largest_error + case.config.tolerance
        findings, said = [], []
        for name, scores in found.items():
            gap = largest_difference(scores, golden.targets)
            said.append(f"{name} {gap:.2g}")
            if not gap <= allowed:
                findings.append(
                    Finding(
                        name="golden examples differ",
                        what=f"engine {name}",
                        found=f"scores that differ from the trained model's by up to {gap:.3g}",
                        wanted=f"at most {allowed:.3g}",
                        advice="the export does not predict what was trained: export again",
                    )
                )
        text = f"{golden.examples} golden examples, largest difference: {', '.join(said)}"
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
        said = f"{case.examples.count:,} examples, largest difference {gaps.max(initial=0.0):.2g}, "
        said += f"mean {gaps.mean() if len(gaps) else 0.0:.2g}"
        said += _aucs(case, side, (offline, online), figures)
        findings = []
        if (gaps > case.config.tolerance).any():
            parting = _parting(case, prediction, gaps)
            figures["parting"] = parting
            findings.append(_differ(case, side, (offline, online), gaps, parting))
        return CheckResult.of("predictions", side.name, said, findings, figures)


def differences(offline: Arrays, online: Arrays) -> NDArray[np.float64]:
    """By example, over all targets: float64[B], relative to scores above 1.

    inf where a target is missing, of another shape, or NaN on one side only.

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
    """The first number of the first target, for pictures: float64[B]."""
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
            first = 1.0 / (1.0 + np.exp(-np.nan_to_num(first)))  # logits: the order is kept
        auc = AUC(2**20)
        auc.update(first, labels)
        found.append(auc.compute())
    figures["auc"] = tuple(found)
    return f", AUC {found[0]:.6f} offline, {found[1]:.6f} {_word(side)}"


def _word(side: Side) -> str:
    return "trained" if side.role == "training" else "online"


def _parting(case: Case, prediction: SidePrediction, gaps: NDArray[np.float64]) -> Parting | None:
    """Where the first example that differs does so."""
    at = int(np.flatnonzero(gaps > case.config.tolerance)[0])
    arrays = case.examples.part(at, at + 1)
    online = prediction.trace(arrays)
    if online is None:
        return None
    return find_parting(case.model.trace(arrays), online, case.config.tolerance)


def _differ(
    case: Case,
    side: Side,
    both: tuple[Arrays, Arrays],
    gaps: NDArray[np.float64],
    parting: Parting | None,
) -> Finding:
    wrong = np.flatnonzero(gaps > case.config.tolerance)
    left, right = map(_first, both)
    examples = [
        f"example {at}: offline {left[at]:.6g}, {_word(side)} {right[at]:.6g}"
        for at in wrong[:_EXAMPLES]
        if at < len(right)
    ]
    found = f"{len(wrong):,} of {len(gaps):,} examples that differ, by up to {gaps.max():.3g}"
    if parting is not None:
        found += f"; they part at {parting.layer}"
    return Finding(
        name="scores differ",
        what=f"target '{next(iter(both[0]))}'",
        found=found,
        wanted=f"at most {case.config.tolerance:g}",
        examples=tuple(examples),
    )
