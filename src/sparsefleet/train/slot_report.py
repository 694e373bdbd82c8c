"""Evaluates slots: importance by shuffling, calibration, and metrics on slices.

In shapes, B is the number of examples in a batch and N the number of examples on this worker.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.metrics import AUC, Calibration, LogLoss, MetricSet

if TYPE_CHECKING:
    from sparsefleet.fleet.meeting import Meeting

__all__ = ["Slice", "SlotReport", "evaluate_by_slot"]

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
        from sparsefleet.train.slot_page import page_of

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
    figures = dict(evaluate(batches))
    importance = {}
    for name in columns:
        changed = evaluate(_with_shuffled(batches, columns, name))
        importance[name] = {key: changed[key] - value for key, value in figures.items()}
    order = sorted(importance, key=lambda name: -importance[name]["loss"])
    predictions = predict(batches).numpy().reshape(-1)
    labels = np.concatenate([np.asarray(labels).reshape(-1) for _, labels in batches])
    if len(predictions) != len(labels):
        raise ConfigError(
            f"by='slot' needs one prediction per example, got {len(predictions)} predictions for "
            f"{len(labels)} examples"
        )
    return SlotReport(
        figures=figures,
        importance={name: importance[name] for name in order},
        calibration=_calibration(predictions, labels, meeting),
        slices=_slices(columns, predictions, labels, meeting),
    )


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
    columns: dict[str, _Column],
    predictions: NDArray[Any],
    labels: NDArray[Any],
    meeting: Meeting,
) -> list[Slice]:
    found = []
    for name, column in columns.items():
        if column.is_ragged or column.values.ndim != 1:
            continue
        for value, mask in _groups(column.values, meeting):
            metrics = MetricSet({"auc": AUC(), "log_loss": LogLoss(), "calibration": Calibration()})
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
        own = np.quantile(values, [0.25, 0.5, 0.75])
        parts = [np.frombuffer(part) for part in meeting.all_gather(own.tobytes())]
        borders = np.unique(np.mean(parts, axis=0))  # equal ones if a value is frequent
        place = np.searchsorted(borders, values)  # a border belongs to the range below it
        shown = [f"{border:.4g}" for border in borders]
        between = [f"above {low} to {high}" for low, high in itertools.pairwise(shown)]
        names = [f"up to {shown[0]}", *between, f"above {shown[-1]}"]
        return [(name, place == at) for at, name in enumerate(names)]
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
