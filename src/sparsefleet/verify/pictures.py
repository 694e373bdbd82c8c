"""Pictures of the report, as SVG without anything around it.

Letters: B examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from sparsefleet.verify.row_comparison import RowTally

__all__ = ["difference_histogram", "layer_ladder", "row_bars", "score_scatter"]

Numbers = NDArray[np.float64]

_SIZE, _MARGIN = 364, 58
_POINTS = 2000
_LAYERS = 80
_LEAST = 1e-9
"""Differences below it, and none at all, are drawn at the left edge."""


def score_scatter(offline: Numbers, online: Numbers, gaps: Numbers, tolerance: float) -> str:
    """Scores float64[B] of both sides against each other; those that differ stand out."""
    offline, online = np.asarray(offline), np.asarray(online)
    if offline.shape != online.shape:
        return ""
    whole = np.isfinite(offline) & np.isfinite(online)
    wrong = gaps > tolerance
    chosen = _chosen(whole, wrong)
    if not len(chosen):
        return ""
    ends = np.concatenate([offline[whole], online[whole]])
    low, high = float(ends.min()), float(ends.max())
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return (value - low) / span * (_SIZE - 2 * _MARGIN)

    ticks = [(at(value), f"{value:.3g}") for value in np.linspace(low, high, 5)]
    marks = [_axes("offline score", "online score", ticks, [ticks[0], ticks[-1]])]
    edge = _SIZE - _MARGIN
    marks.append(f'<line class="even" x1="{_MARGIN}" y1="{edge}" x2="{edge}" y2="{_MARGIN}"/>')
    for index in chosen:
        x, y = _MARGIN + at(offline[index]), _SIZE - _MARGIN - at(online[index])
        kind = "wrong" if wrong[index] else "right"
        said = f"example {index}: offline {offline[index]:.6g}, online {online[index]:.6g}"
        marks.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{said}</title>'
            "</circle>"
        )
    return _svg(_SIZE, _SIZE, "Scores of offline and online", marks)


def _chosen(whole: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Examples to draw: those that differ last, so that they lie on top."""
    right, bad = np.flatnonzero(whole & ~wrong), np.flatnonzero(whole & wrong)
    step = max(1, len(right) // _POINTS)
    return np.concatenate([right[::step], bad[:: max(1, len(bad) // _POINTS)]])


def difference_histogram(gaps: Numbers, tolerance: float) -> str:
    """How many examples differ by how much, on a scale of powers of ten."""
    finite = np.where(np.isfinite(gaps), gaps, 10.0)
    powers = np.log10(np.clip(finite, _LEAST, 10.0))
    counts, _ = np.histogram(powers, bins=20, range=(-9, 1))
    if not counts.sum():
        return ""
    inner = _SIZE - 2 * _MARGIN
    width = inner / len(counts)

    def at(power: float) -> float:
        return (power + 9) / 10 * inner

    ticks = [(at(power), f"1e{power}") for power in (-9, -6, -3, 0)]
    marks = [_axes("difference", "examples", ticks, [(inner, f"{counts.max():,}")])]
    for index, count in enumerate(counts):
        height = inner * count / counts.max()
        kind = "wrong" if 10 ** (index / 2 - 9 + 0.25) > tolerance else "right"
        marks.append(
            f'<rect class="{kind}" x="{_MARGIN + index * width:.1f}" width="{width - 1:.1f}" '
            f'y="{_SIZE - _MARGIN - height:.1f}" height="{height:.1f}">'
            f"<title>{count:,} examples</title></rect>"
        )
    if tolerance > 0:
        x = _MARGIN + min(max(at(float(np.log10(tolerance))), 0.0), inner)
        marks.append(
            f'<line class="limit" x1="{x:.1f}" y1="{_MARGIN}" x2="{x:.1f}" y2="{_SIZE - _MARGIN}"/>'
            f'<text class="tick" x="{x + 4:.1f}" y="{_MARGIN + 10}">allowed</text>'
        )
    return _svg(_SIZE, _SIZE, "Differences of scores", marks)


def row_bars(tallies: Mapping[str, RowTally]) -> str:
    """For every table, which share of its rows is right, missing, different or too many."""
    width, line = 560, 28
    marks = []
    for index, (name, tally) in enumerate(tallies.items()):
        parts = (
            ("right", tally.same, "equal"),
            ("wrong", tally.different, "different"),
            ("lost", tally.missing, "missing"),
            ("more", tally.extra, "too many"),
        )
        total = sum(count for _, count, _ in parts) or 1
        x, y = 160.0, index * line + 6
        marks.append(f'<text class="name" x="150" y="{y + 13}">{escape(name)}</text>')
        for kind, count, said in parts:
            share = (width - 170) * count / total
            if count:
                share = max(share, 3.0)  # one row of millions is seen, too
                marks.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{share:.1f}" height="18">'
                    f"<title>{count:,} rows {said}</title></rect>"
                )
            x += share
    return _svg(width + 12, len(tallies) * line + 12, "Rows of tables", marks)


def layer_ladder(steps: Sequence[tuple[str, float]], parted: str) -> str:
    """Layers from the inputs down, each with how much it differs; the first one is marked.

    Of a deep model, those around it.
    """
    width, line = 560, 20
    first = next((at for at, (name, _) in enumerate(steps) if name == parted), 0)
    steps = steps[max(0, first - _LAYERS // 2) :][:_LAYERS]
    marks = []
    for index, (name, gap) in enumerate(steps):
        y = index * line + 14
        kind = "right" if gap == 0 else "wrong"
        length = 0.0 if gap <= 0 else 120 * (np.log10(min(max(gap, _LEAST), 10.0)) + 9) / 10
        is_first = name == parted
        marks.append(
            f'<text class="{"first" if is_first else "layer"}" x="8" y="{y}">'
            f"{'&#9658; ' if is_first else ''}{escape(name)}</text>"
            f'<rect class="{kind}" x="360" y="{y - 10}" width="{length + 2:.1f}" height="12"/>'
            f'<text class="tick" x="{370 + length:.1f}" y="{y}">{gap:.2g}</text>'
        )
    return _svg(width, len(steps) * line + 10, "Differences by layer", marks)


def _axes(
    across: str,
    up: str,
    ticks: Sequence[tuple[float, str]],
    vertical: Sequence[tuple[float, str]],
) -> str:
    """Two axes with their names, and numbers at places along them."""
    edge = _SIZE - _MARGIN
    lines = [
        f'<path class="axis" d="M{_MARGIN} {_MARGIN}V{edge}H{edge}"/>'
        f'<text class="label" x="{_SIZE / 2}" y="{_SIZE - 8}">{across}</text>'
        f'<text class="label" transform="translate(12 {_SIZE / 2}) rotate(-90)">{up}</text>'
    ]
    for x, text in ticks:
        lines.append(f'<text class="under" x="{_MARGIN + x:.1f}" y="{edge + 15}">{text}</text>')
    for y, text in vertical:
        lines.append(f'<text class="beside" x="{_MARGIN - 5}" y="{edge - y + 4:.1f}">{text}</text>')
    return "".join(lines)


def _svg(width: float, height: float, title: str, marks: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}"><title>{escape(title)}</title>{"".join(marks)}</svg>'
    )
