"""The results of a verification, as text and as one self-contained HTML file.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sparsefleet.serving.verify.row_comparison import RowTally

__all__ = [
    "CHECKS",
    "CheckName",
    "CheckResult",
    "Figures",
    "Finding",
    "Report",
    "Status",
    "counted",
    "difference_histogram",
    "layer_chart",
    "print_report",
    "report_as_html",
    "row_bars",
    "score_scatter",
    "write_html",
]

CheckName = Literal["settings", "pruning", "parameters", "inputs", "predictions"]
CHECKS: tuple[CheckName, ...] = ("settings", "pruning", "parameters", "inputs", "predictions")
"""The checks in order of cause: a wrong version explains wrong rows, and wrong rows explain wrong
predictions. The first finding is therefore the likely cause of the later findings.
"""

Status = Literal["passed", "failed", "skipped"]
Figures = dict[str, Any]
"""Numbers and arrays from a check, for the tables and charts of the report."""


def counted(count: int, thing: str) -> str:
    """Return the count with its noun, in the plural if needed.

    >>> counted(1, "table"), counted(1200, "row")
    ('1 table', '1,200 rows')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One defect that a check found.

    >>> print(Finding(name="rows missing", what="table 'ads'", found="90 rows", wanted="100 rows"))
    rows missing: table 'ads': found 90 rows, wanted 100 rows
    """

    name: str
    """The kind of defect, from the list in docs/going_online.md."""
    what: str
    """The defective part: a table, a parameter, an input or a setting."""
    found: str
    wanted: str
    examples: tuple[str, ...] = ()
    """The first few affected keys, rows or examples."""
    advice: str = ""
    """What to do next, if known."""
    severity: Literal["error", "warning"] = "error"
    """A warning is reported but does not fail the check."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}: found {self.found}, wanted {self.wanted}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of one check of the export, either alone or against one side."""

    check: CheckName
    side: str
    """The side that the export was compared with, or the export's directory if checked alone."""
    status: Status
    summary: str
    """One line that says what was compared, or why the check was skipped."""
    findings: tuple[Finding, ...] = ()
    figures: Figures = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        check: CheckName,
        side: str,
        summary: str,
        findings: list[Finding],
        figures: Figures | None = None,
    ) -> CheckResult:
        """Return a result whose status is "failed" if any finding is an error."""
        failed = any(finding.severity == "error" for finding in findings)
        return cls(
            check=check,
            side=side,
            status="failed" if failed else "passed",
            summary=summary,
            findings=tuple(findings),
            figures=figures or {},
        )

    @classmethod
    def skipped(cls, check: CheckName, side: str, why: str) -> CheckResult:
        return cls(check=check, side=side, status="skipped", summary=why)

    def to_json(self) -> dict[str, Any]:
        """Return the result without its figures, which only the charts use."""
        content = asdict(self)
        del content["figures"]
        return content


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All results: first for the export alone, then for each side."""

    directory: str
    version: str
    created: str
    """When the model was exported and when this report was made."""
    examples: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Return whether no check failed. Skipped checks are ignored."""
        return all(result.status != "failed" for result in self.results)

    @property
    def findings(self) -> tuple[tuple[CheckResult, Finding], ...]:
        """Return all findings, errors first and likely causes before their consequences."""
        found = [(result, finding) for result in self.results for finding in result.findings]
        return tuple(
            sorted(found, key=lambda item: (item[1].severity, CHECKS.index(item[0].check)))
        )

    @property
    def cause(self) -> tuple[CheckResult, Finding] | None:
        """Return the first error, which is the place to start looking, or None."""
        errors = [item for item in self.findings if item[1].severity == "error"]
        return errors[0] if errors else None

    def to_json(self) -> str:
        """Return everything except the figures."""
        content: dict[str, Any] = {
            "passed": self.passed,
            "directory": self.directory,
            "version": self.version,
            "created": self.created,
            "examples": self.examples,
            "results": [result.to_json() for result in self.results],
        }
        return json.dumps(content, indent=1) + "\n"


_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}


def print_report(report: Report, console: Console) -> None:
    """Print a table of checks, all findings (likely causes first), and the verdict."""
    console.print(Text(f"{report.directory}, version {report.version}"))
    console.print(Text(f"{report.created}; examples: {report.examples}"))
    console.print(_checks(report))
    for number, (result, finding) in enumerate(report.findings, 1):
        console.print(_finding(number, result, finding))
    if report.cause is None:
        console.print(Text("PASSED", style="bold green"))
    else:
        result, finding = report.cause
        description = f"FAILED: {finding.name} ({result.check}): {finding.what}"
        console.print(Text(description, style="bold red"))


def _checks(report: Report) -> Table:
    table = Table(title="checks", title_justify="left")
    for column in ("check", "checked against", "result", "compared"):
        table.add_column(column, overflow="fold")
    for result in report.results:
        table.add_row(
            Text(result.check),
            Text(result.side),
            Text(result.status, style=_STYLES[result.status]),
            Text(result.summary),
        )
    return table


def _finding(number: int, result: CheckResult, finding: Finding) -> Text:
    style = "bold red" if finding.severity == "error" else "yellow"
    text = Text()
    text.append(f"{number}. {result.check}: {finding.name}: {finding.what}\n", style=style)
    lines = [("against", result.side), ("found", finding.found), ("wanted", finding.wanted)]
    lines += [("example", example) for example in finding.examples]
    lines += [("fix", finding.advice)] if finding.advice else []
    for name, description in lines:
        text.append(f"   {name:8}", style="dim")
        text.append(f"{description}\n")
    return text


Numbers = NDArray[np.float64]

_SIZE, _MARGIN = 364, 58
_POINTS = 2000
_LAYERS = 80
_LEAST = 1e-9
"""Differences smaller than this are drawn at the left edge."""


def score_scatter(offline: Numbers, online: Numbers, gaps: Numbers, tolerance: float) -> str:
    """Plot offline against online scores, float64[B] each, highlighting differences."""
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
        description = f"example {index}: offline {offline[index]:.6g}, online {online[index]:.6g}"
        marks.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{description}</title>'
            "</circle>"
        )
    return _svg(_SIZE, _SIZE, "Offline and online scores", marks)


def _chosen(whole: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the examples to draw; those that differ come last, so that they are on top."""
    right, bad = np.flatnonzero(whole & ~wrong), np.flatnonzero(whole & wrong)
    step = max(1, len(right) // _POINTS)
    return np.concatenate([right[::step], bad[:: max(1, len(bad) // _POINTS)]])


def difference_histogram(gaps: Numbers, tolerance: float) -> str:
    """Plot a histogram of the differences between scores, on a logarithmic scale."""
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
            f'<text class="tick" x="{x + 4:.1f}" y="{_MARGIN + 10}">tolerance</text>'
        )
    return _svg(_SIZE, _SIZE, "Score differences", marks)


def row_bars(tallies: Mapping[str, RowTally]) -> str:
    """Plot the fraction of each table's rows that are equal, different, missing or extra."""
    width, line = 560, 28
    marks = []
    for index, (name, tally) in enumerate(tallies.items()):
        parts = (
            ("right", tally.same, "equal"),
            ("wrong", tally.different, "different"),
            ("lost", tally.missing, "missing"),
            ("more", tally.extra, "extra"),
        )
        total = sum(count for _, count, _ in parts) or 1
        x, y = 160.0, index * line + 6
        marks.append(f'<text class="name" x="150" y="{y + 13}">{escape(name)}</text>')
        for kind, count, description in parts:
            share = (width - 170) * count / total
            if count:
                share = max(share, 3.0)  # keep one row in millions visible
                marks.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{share:.1f}" height="18">'
                    f"<title>{count:,} rows {description}</title></rect>"
                )
            x += share
    return _svg(width + 12, len(tallies) * line + 12, "Rows of tables", marks)


def layer_chart(steps: Sequence[tuple[str, float]], parted: str) -> str:
    """Plot the difference in each layer, starting at the inputs; mark the first layer that differs.

    For a deep model, plot only the layers around the marked layer.
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
    across: str, up: str, ticks: Sequence[tuple[float, str]], vertical: Sequence[tuple[float, str]]
) -> str:
    """Draw two labeled axes with ticks."""
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


_STYLE = """
:root { --ink: #1c2430; --soft: #5d6a7b; --paper: #fff; --line: #d7dde5; --right: #2d7dd2;
  --wrong: #d1345b; --lost: #f08a24; --more: #8d6cab; --good: #1d8a5b; --card: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b8; --paper: #14181f;
  --line: #333c49; --right: #5aa5f0; --wrong: #f0607f; --good: #4cc38a; --card: #1c222b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1020px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { padding: .8rem 1.1rem; border-radius: 8px; color: #fff; font-size: 1.1rem; }
.verdict.passed { background: #1d8a5b; } .verdict.failed { background: #b3274b; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; } td:first-child { white-space: nowrap; }
td:nth-child(2) { min-width: 12rem; }
.status { font-weight: 700; white-space: nowrap; } .status.passed { color: var(--good); }
.status.failed { color: var(--wrong); } .status.skipped { color: var(--soft); }
.finding { background: var(--card); border-left: 4px solid var(--wrong); padding: .6rem 1rem;
  margin: .7rem 0; border-radius: 4px; overflow-wrap: anywhere; }
.finding.warning { border-color: var(--lost); } .finding h3 { margin: 0 0 .3rem; font-size: 1rem; }
.finding dl { display: grid; grid-template-columns: 5.5rem 1fr; margin: 0; gap: .1rem .6rem; }
dt { color: var(--soft); } dd { margin: 0; } .soft { color: var(--soft); }
figure { display: inline-block; margin: .6rem 1.2rem .6rem 0; vertical-align: top; }
figcaption { color: var(--soft); font-size: .9rem; }
svg { max-width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg .name { text-anchor: end; fill: var(--ink); }
svg .label, svg .under { text-anchor: middle; } svg .beside { text-anchor: end; }
svg .layer { fill: var(--ink); } svg .first { fill: var(--wrong); font-weight: 700; }
svg .axis { fill: none; stroke: var(--soft); } svg .even { stroke: var(--line); }
svg .limit { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .right { fill: var(--right); } svg .wrong { fill: var(--wrong); }
svg .lost { fill: var(--lost); } svg .more { fill: var(--more); }
"""


def write_html(report: Report, path: Path, tolerance: float) -> None:
    """Write the report to a file. The charts show the `tolerance`."""
    path.write_text(report_as_html(report, tolerance), encoding="utf-8")


def report_as_html(report: Report, tolerance: float) -> str:
    """Return the page with the verdict, checks, findings and charts."""
    findings = "".join(_finding_as_html(result, finding) for result, finding in report.findings)
    pictures = "".join(_pictures(result, tolerance) for result in report.results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>verify {escape(report.directory)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Does the served model match the trained model?</h1>{_verdict(report)}"
        f'<p class="soft">{escape(report.directory)}, version {escape(report.version)}, '
        f"{escape(report.created)}. Examples: {escape(report.examples)}.</p>"
        f"<h2>Checks</h2>{_checks_as_html(report)}"
        + (f"<h2>Findings, likely causes first</h2>{findings}" if findings else "")
        + (f"<h2>Charts</h2>{pictures}" if pictures else "")
        + "</body></html>\n"
    )


def _verdict(report: Report) -> str:
    if report.cause is None:
        return '<p class="verdict passed">Passed.</p>'
    result, finding = report.cause
    description = f"Failed: {finding.name} ({result.check}). Start here: {finding.what}."
    return f'<p class="verdict failed">{escape(description)}</p>'


def _checks_as_html(report: Report) -> str:
    rows = "".join(
        f'<tr><td>{result.check}</td><td>{escape(result.side)}</td><td class="status '
        f'{result.status}">{result.status}</td><td>{escape(result.summary)}</td></tr>'
        for result in report.results
    )
    head = "<tr><th>check</th><th>checked against</th><th>result</th><th>compared</th></tr>"
    return f"<table>{head}{rows}</table>"


def _finding_as_html(result: CheckResult, finding: Finding) -> str:
    parts = [("against", result.side), ("found", finding.found), ("wanted", finding.wanted)]
    parts += [("example", text) for text in finding.examples]
    parts += [("fix", finding.advice)] if finding.advice else []
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in parts)
    title = f"{result.check}: {finding.name}: {finding.what}"
    return f'<div class="finding {finding.severity}"><h3>{escape(title)}</h3><dl>{rows}</dl></div>'


def _pictures(result: CheckResult, tolerance: float) -> str:
    figures = result.figures
    drawn: list[tuple[str, str]] = []
    if "differences" in figures:
        gaps = figures["differences"]
        scatter = score_scatter(figures["offline"], figures["online"], gaps, tolerance)
        drawn.append((scatter, "Each point is an example; points on the line agree."))
        drawn.append(
            (difference_histogram(gaps, tolerance), "Number of examples by size of difference.")
        )
    first = figures.get("first_difference")
    if first is not None and first.steps:
        description = "One example that differs, layer by layer; the first difference is marked."
        drawn.append((layer_chart(first.steps, first.layer), description))
    if figures.get("rows"):
        description = "Rows: equal (blue), different (red), missing (orange), extra (violet)."
        drawn.append((row_bars(figures["rows"]), description))
    shown = "".join(
        f"<figure>{picture}<figcaption>{description}</figcaption></figure>"
        for picture, description in drawn
        if picture
    )
    return f"<h3>{result.check}, {escape(result.side)}</h3>{shown}" if shown else ""
