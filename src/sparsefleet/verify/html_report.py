"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from pathlib import Path

from sparsefleet.verify.finding import CheckResult, Finding
from sparsefleet.verify.pictures import (
    difference_histogram,
    layer_ladder,
    row_bars,
    score_scatter,
)
from sparsefleet.verify.report import Report

__all__ = ["report_as_html", "write_html"]

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
    """Writes the report; a picture shows `tolerance`."""
    path.write_text(report_as_html(report, tolerance), encoding="utf-8")


def report_as_html(report: Report, tolerance: float) -> str:
    """All of it: verdict, checks, findings, pictures."""
    findings = "".join(_finding(result, finding) for result, finding in report.findings)
    pictures = "".join(_pictures(result, tolerance) for result in report.results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>verify {escape(report.directory)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Is what is online what was trained?</h1>{_verdict(report)}"
        f'<p class="soft">{escape(report.directory)}, version {escape(report.version)}, '
        f"{escape(report.created)}. Examples: {escape(report.examples)}.</p>"
        f"<h2>Checks</h2>{_checks(report)}"
        + (f"<h2>Findings, likely causes first</h2>{findings}" if findings else "")
        + (f"<h2>Pictures</h2>{pictures}" if pictures else "")
        + "</body></html>\n"
    )


def _verdict(report: Report) -> str:
    if report.cause is None:
        return '<p class="verdict passed">Passed: all checks hold.</p>'
    result, finding = report.cause
    said = f"Failed: {finding.name} ({result.check}). Look there first: {finding.what}."
    return f'<p class="verdict failed">{escape(said)}</p>'


def _checks(report: Report) -> str:
    rows = "".join(
        f'<tr><td>{result.check}</td><td>{escape(result.side)}</td><td class="status '
        f'{result.status}">{result.status}</td><td>{escape(result.summary)}</td></tr>'
        for result in report.results
    )
    head = "<tr><th>check</th><th>of, or against</th><th></th><th>compared</th></tr>"
    return f"<table>{head}{rows}</table>"


def _finding(result: CheckResult, finding: Finding) -> str:
    parts = [("against", result.side), ("found", finding.found), ("wanted", finding.wanted)]
    parts += [("example", text) for text in finding.examples]
    parts += [("do", finding.advice)] if finding.advice else []
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in parts)
    title = f"{result.check}: {finding.name}: {finding.what}"
    return f'<div class="finding {finding.severity}"><h3>{escape(title)}</h3><dl>{rows}</dl></div>'


def _pictures(result: CheckResult, tolerance: float) -> str:
    figures = result.figures
    drawn: list[tuple[str, str]] = []
    if "differences" in figures:
        gaps = figures["differences"]
        scatter = score_scatter(figures["offline"], figures["online"], gaps, tolerance)
        drawn.append((scatter, "Each point is an example; on the line both sides agree."))
        drawn.append((difference_histogram(gaps, tolerance), "Examples by how much they differ."))
    parting = figures.get("parting")
    if parting is not None and parting.steps:
        said = "One example that differs, layer by layer: the first that is off is marked."
        drawn.append((layer_ladder(parting.steps, parting.layer), said))
    if figures.get("rows"):
        said = "Rows: equal (blue), different (red), missing (orange), too many (violet)."
        drawn.append((row_bars(figures["rows"]), said))
    shown = "".join(
        f"<figure>{picture}<figcaption>{said}</figcaption></figure>"
        for picture, said in drawn
        if picture
    )
    return f"<h3>{result.check}, {escape(result.side)}</h3>{shown}" if shown else ""
