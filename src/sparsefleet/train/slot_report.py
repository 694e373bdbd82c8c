"""Evaluates slots by shuffling, calibration and slices; shows the results as an HTML page.

In shapes, B is the number of examples in a batch and N the number of examples on this worker.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.metrics import AUC, Calibration, LogLoss, MetricSet

if TYPE_CHECKING:
    from sparsefleet.fleet.meeting import Meeting

__all__ = ["Slice", "SlotReport", "evaluate_by_slot", "page_of"]

NUM_BINS = 20
_MOST_VALUES = 8  # number of ids per slot that get their own slice
_SEED = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The examples with one value of a slot, or with values in one range of numbers."""

    slot: str
    value: str
    examples: int
    figures: dict[str, float]
    """"auc", "log_loss" and "calibration"; nan if undefined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotReport:
    """The result of `Trainer.evaluate(data, by="slot")`, the same on every worker."""

    figures: dict[str, float]
    """Loss and metrics on all examples."""
    importance: dict[str, dict[str, float]]
    """For each slot, how much each figure changes when the slot is shuffled. The most important
    slot comes first.
    """
    calibration: list[tuple[float, float, int]]
    """For each bin of predictions, the mean prediction, the mean label and the number of examples.
    Empty bins are left out.
    """
    slices: list[Slice] = field(default_factory=list)
    """For each slot with one value per example, its most frequent ids or ranges of numbers."""

    def named(self, names: Mapping[str, Mapping[str, str]]) -> SlotReport:
        """Return the report with other values in its slices. names: by slot, then by value."""
        slices = [
            replace(one, value=names.get(one.slot, {}).get(one.value, one.value))
            for one in self.slices
        ]
        return replace(self, slices=slices)

    def write_html(self, path: str | os.PathLike[str], *, title: str = "Evaluation") -> None:
        """Write the report as a single HTML file with charts."""

        Path(path).write_text(page_of(self, title), encoding="utf-8")


Evaluate = Callable[[Iterable[Any]], Mapping[str, float]]
Predict = Callable[[Iterable[Any]], torch.Tensor]


def evaluate_by_slot(
    batches: list[Any], evaluate: Evaluate, predict: Predict, meeting: Meeting
) -> SlotReport:
    """Return the report on the batches of all workers. Must be called by all workers.

    evaluate: returns the figures over the batches of all workers.
    predict: returns this worker's predictions.
    """
    columns = _columns_of(batches)
    predictions, labels = _scored(batches, predict)
    figures = dict(evaluate(batches))
    importance = {}
    for name in columns:
        changed = evaluate(_with_shuffled(batches, columns, name))
        importance[name] = {key: changed[key] - value for key, value in figures.items()}
    order = sorted(importance, key=lambda name: -importance[name]["loss"])
    return SlotReport(
        figures=figures,
        importance={name: importance[name] for name in order},
        calibration=_calibration(predictions, labels, meeting),
        slices=_slices(columns, predictions, labels, meeting),
    )


def _scored(batches: list[Any], predict: Predict) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the probability of class 1 and the label of each example, [N]; raises an error if they
    are not suitable for the report.
    """
    predictions = predict(batches).numpy()
    labels = np.concatenate([np.asarray(labels) for _, labels in batches])
    if predictions.ndim == 2 and predictions.shape[1] == 2 and labels.size == len(labels):
        predictions = predictions[:, 1]
    if not len(labels) == labels.size == predictions.size:
        raise ConfigError(
            "by='slot' needs one label and one prediction per example, got labels of shape "
            f"{list(labels.shape)} and predictions of shape {list(predictions.shape)}"
        )
    predictions, labels = predictions.reshape(-1), labels.reshape(-1)
    _slice_metrics().update(predictions, labels)  # raises unless they are probabilities and 0 or 1
    return predictions, labels


def _slice_metrics() -> MetricSet:
    return MetricSet({"auc": AUC(), "log_loss": LogLoss(), "calibration": Calibration()})


# -- shuffling ----------------------------------------------------------------------------------


class _Column:
    """One slot over all batches: values [N, ...], or values and lengths if ragged."""

    def __init__(self, parts: list[Any]) -> None:
        self.is_ragged = isinstance(parts[0], tuple)
        if not self.is_ragged:
            self.values = np.concatenate([np.asarray(part) for part in parts])
            return
        self.values = np.concatenate([np.asarray(values) for values, _ in parts])
        self.lengths = np.concatenate(
            [np.diff(np.asarray(offsets), append=len(values)) for values, offsets in parts]
        )

    def __len__(self) -> int:
        return len(self.lengths) if self.is_ragged else len(self.values)

    def take(self, rows: NDArray[np.int64]) -> Any:
        """Return the values of these examples in the form of a batch."""
        if not self.is_ragged:
            return self.values[rows]
        lengths = self.lengths[rows]
        starts = np.cumsum(self.lengths) - self.lengths
        offsets = np.cumsum(lengths) - lengths
        places = np.repeat(starts[rows] - offsets, lengths) + np.arange(lengths.sum())
        return self.values[places], offsets


def _named(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return {str(place): part for place, part in enumerate(inputs)}
    return {"input": inputs}


def _like(inputs: Any, named: dict[str, Any]) -> Any:
    if isinstance(inputs, Mapping):
        return named
    return tuple(named.values()) if isinstance(inputs, (tuple, list)) else named["input"]


def _columns_of(batches: list[Any]) -> dict[str, _Column]:
    if not batches:
        raise ConfigError("by='slot' needs at least one batch on every worker, got none")
    if not all(isinstance(batch, (tuple, list)) and len(batch) == 2 for batch in batches):
        raise ConfigError("by='slot' needs batches of the form (inputs, labels)")
    named = [_named(inputs) for inputs, _ in batches]
    return {name: _Column([one[name] for one in named]) for name in named[0]}


def _with_shuffled(
    batches: list[Any], columns: dict[str, _Column], name: str
) -> Iterator[tuple[Any, Any]]:
    """Yield the batches with the values of one slot permuted across all examples."""
    column = columns[name]
    order = np.random.default_rng(_SEED).permutation(len(column))
    begin = 0
    for inputs, labels in batches:
        end = begin + len(np.asarray(labels))
        named = _named(inputs) | {name: column.take(order[begin:end])}
        yield _like(inputs, named), labels
        begin = end


# -- calibration and slices ---------------------------------------------------------------------


def _calibration(
    predictions: NDArray[Any], labels: NDArray[Any], meeting: Meeting
) -> list[tuple[float, float, int]]:
    bins = np.clip((predictions * NUM_BINS).astype(np.int64), 0, NUM_BINS - 1)
    sums = np.stack(
        [
            np.bincount(bins, weights, NUM_BINS)
            for weights in (predictions, labels, np.ones(len(labels)))
        ]
    )
    total = sum(
        np.frombuffer(part).reshape(sums.shape) for part in meeting.all_gather(sums.tobytes())
    )
    return [
        (float(scored / count), float(positive / count), int(count))
        for scored, positive, count in np.asarray(total).T
        if count
    ]


def _slices(
    columns: dict[str, _Column], predictions: NDArray[Any], labels: NDArray[Any], meeting: Meeting
) -> list[Slice]:
    found = []
    for name, column in columns.items():
        if column.is_ragged or column.values.ndim != 1:
            continue
        for value, mask in _groups(column.values, meeting):
            metrics = _slice_metrics()
            metrics.update(predictions[mask], labels[mask])
            count = np.array([mask.sum()], np.int64)
            states = meeting.all_gather(count.tobytes() + metrics.state())
            merged = MetricSet.from_state(states[0][8:])
            for state in states[1:]:
                merged.merge_state(state[8:])
            total = sum(int(np.frombuffer(state[:8], np.int64)[0]) for state in states)
            if total:
                found.append(
                    Slice(slot=name, value=value, examples=total, figures=merged.compute())
                )
    return found


def _groups(values: NDArray[Any], meeting: Meeting) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return the names and masks of a slot's slices, the same on all workers."""
    if values.dtype.kind == "f":
        known = values[np.isfinite(values)]
        own = np.quantile(known, [0.25, 0.5, 0.75]) if len(known) else np.full(3, np.nan)
        parts = np.array([np.frombuffer(part) for part in meeting.all_gather(own.tobytes())])
        parts = parts[~np.isnan(parts[:, 0])]  # of workers with numbers
        missing = ("missing", np.isnan(values))
        if not len(parts):
            return [missing]
        borders = np.unique(np.mean(parts, axis=0))  # equal ones if a value is frequent
        place = np.searchsorted(borders, values)  # a border belongs to the range below it
        shown = [f"{border:.4g}" for border in borders]
        between = [f"above {low} to {high}" for low, high in itertools.pairwise(shown)]
        names = [f"up to {shown[0]}", *between, f"above {shown[-1]}"]
        return [
            *((name, (place == at) & ~missing[1]) for at, name in enumerate(names)),
            missing,
        ]
    values = values.astype(np.int64) if values.dtype == np.bool_ else values
    ids, counts = np.unique(values, return_counts=True)
    most = np.argsort(-counts, kind="stable")[: 4 * _MOST_VALUES]
    own_counts = {str(ids[at]): int(counts[at]) for at in most}
    total: dict[str, int] = {}
    for part in meeting.all_gather(json.dumps(own_counts).encode()):
        for value, count in json.loads(part).items():
            total[value] = total.get(value, 0) + count
    chosen = sorted(total, key=lambda value: (-total[value], int(value)))[:_MOST_VALUES]
    groups = [(value, values == int(value)) for value in chosen]
    others = np.isin(values, [int(value) for value in chosen], invert=True)
    return [*groups, ("others", others)]


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6b7280; --line: #d5d9e0;
  --bar: #2f6fdd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --line: #3a4048; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem .9rem .2rem 0;
  border-bottom: 1px solid var(--line); } td.number { text-align: right; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .bar { fill: var(--bar); } svg .even { stroke: var(--line); }
svg .curve { fill: none; stroke: var(--bar); stroke-width: 2; } svg .axis { stroke: var(--soft); }
"""
_ROW = 22
_SIDE = 320


def page_of(report: SlotReport, title: str) -> str:
    """Return the page as HTML."""
    figures = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{_number(value)}</td></tr>'
        for name, value in report.figures.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><table>{figures}</table>"
        "<h2>Importance</h2><figure>"
        f"{importance_bars(report.importance)}<figcaption>How much the loss rises when the slot is "
        "shuffled across all examples.</figcaption></figure>"
        "<h2>Calibration</h2><figure>"
        f"{calibration_curve(report.calibration)}<figcaption>Mean label over mean prediction, by "
        "bin; points on the line are perfectly calibrated, and larger points have more examples."
        "</figcaption>"
        f"</figure><h2>Slices</h2>{_slices_as_html(report)}</body></html>\n"
    )


def importance_bars(importance: dict[str, dict[str, float]]) -> str:
    """Return a chart with one bar per slot."""
    most = max((abs(one["loss"]) for one in importance.values()), default=0.0) or 1.0
    parts = []
    for at, (name, one) in enumerate(importance.items()):
        y = at * _ROW
        width = 360 * max(one["loss"], 0.0) / most
        parts.append(
            f'<text x="150" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar" x="160" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}"/>'
            f'<text x="{165 + width:.1f}" y="{y + 15}">{_number(one["loss"])}</text>'
        )
    height = max(len(importance), 1) * _ROW
    return f'<svg viewBox="0 0 620 {height}" width="620" role="img">{"".join(parts)}</svg>'


def calibration_curve(bins: list[tuple[float, float, int]]) -> str:
    """Return a chart of mean labels plotted against mean predictions."""
    total = sum(count for _, _, count in bins) or 1

    def place(predicted: float, label: float) -> tuple[float, float]:
        return 30 + _SIDE * predicted, 10 + _SIDE * (1 - label)

    points = [(*place(predicted, label), count) for predicted, label, count in bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    sizes = [2 + 10 * math.sqrt(count / total) for _, _, count in points]
    dots = "".join(
        f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'
        for (x, y, _), size in zip(points, sizes, strict=True)
    )
    bottom = 10 + _SIDE
    return (
        f'<svg viewBox="0 0 {_SIDE + 60} {_SIDE + 40}" width="{_SIDE + 60}" role="img">'
        f'<line class="even" x1="30" y1="{bottom}" x2="{30 + _SIDE}" y2="10"/>'
        f'<line class="axis" x1="30" y1="{bottom}" x2="{30 + _SIDE}" y2="{bottom}"/>'
        f'<line class="axis" x1="30" y1="10" x2="30" y2="{bottom}"/>'
        f'<text x="26" y="{bottom + 16}">0</text><text x="{22 + _SIDE}" y="{bottom + 16}">1</text>'
        f'<text x="{30 + _SIDE / 2}" y="{bottom + 28}" text-anchor="middle">mean prediction</text>'
        f'<text x="18" y="18">1</text><text transform="translate(16 {10 + _SIDE / 2}) rotate(-90)" '
        'text-anchor="middle">mean label</text>'
        f'<polyline class="curve" points="{line}"/>{dots}</svg>'
    )


def _slices_as_html(report: SlotReport) -> str:
    if not report.slices:
        return "<p>No slot has one value per example.</p>"
    names = list(report.slices[0].figures)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("slot", "value", "examples", *names))
    rows = "".join(
        f'<tr><td>{escape(one.slot)}</td><td>{escape(one.value)}</td><td class="number">'
        f"{one.examples:,}</td>"
        + "".join(f'<td class="number">{_number(one.figures[name])}</td>' for name in names)
        + "</tr>"
        for one in report.slices
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"
