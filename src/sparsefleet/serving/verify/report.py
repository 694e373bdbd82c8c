"""The results of a verification."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "CHECKS",
    "CheckName",
    "CheckResult",
    "Figures",
    "Finding",
    "Report",
    "Status",
    "counted",
    "print_report",
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
