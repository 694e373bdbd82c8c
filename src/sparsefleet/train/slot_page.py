"""The page for an evaluation by slot, as one HTML file with embedded charts."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsefleet.train.slot_report import SlotReport

__all__ = ["page_of"]

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
        f"</figure><h2>Slices</h2>{_slices(report)}</body></html>\n"
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


def _slices(report: SlotReport) -> str:
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
