"""The report for people at a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsefleet.verify.finding import CheckResult, Finding
from sparsefleet.verify.report import Report

__all__ = ["print_report"]

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}


def print_report(report: Report, console: Console) -> None:
    """A table of checks, then all findings, likely causes first, then the verdict."""
    console.print(Text(f"{report.directory}, version {report.version}"))
    console.print(Text(f"{report.created}; examples: {report.examples}"))
    console.print(_checks(report))
    for number, (result, finding) in enumerate(report.findings, 1):
        console.print(_finding(number, result, finding))
    if report.cause is None:
        console.print(Text("PASSED: all checks hold", style="bold green"))
    else:
        result, finding = report.cause
        said = f"FAILED: {finding.name} ({result.check}): {finding.what}"
        console.print(Text(said, style="bold red"))


def _checks(report: Report) -> Table:
    table = Table(title="checks", title_justify="left")
    for column in ("check", "of, or against", "", "compared"):
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
    lines += [("do", finding.advice)] if finding.advice else []
    for name, said in lines:
        text.append(f"   {name:8}", style="dim")
        text.append(f"{said}\n")
    return text
