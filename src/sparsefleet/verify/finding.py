"""What a check says: findings, and whether it holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["CHECKS", "CheckName", "CheckResult", "Figures", "Finding", "Status", "counted"]

CheckName = Literal["settings", "pruning", "parameters", "inputs", "predictions"]
CHECKS: tuple[CheckName, ...] = ("settings", "pruning", "parameters", "inputs", "predictions")
"""In the order in which one explains the next: another version explains other rows, other rows
explain other predictions. So the first finding is the likely cause of those after it."""

Status = Literal["passed", "failed", "skipped"]
Figures = dict[str, Any]
"""Numbers and arrays of a check, for tables and pictures of the report."""


def counted(count: int, thing: str) -> str:
    """
    >>> counted(1, "table"), counted(1200, "row")
    ('1 table', '1,200 rows')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    >>> print(Finding(name="rows missing", what="table 'ads'", found="90 rows", wanted="100 rows"))
    rows missing: table 'ads': found 90 rows, wanted 100 rows
    """

    name: str
    """The kind of defect, from the list in docs/going_online.md."""
    what: str
    """The thing: a table, a parameter, an input, a setting."""
    found: str
    wanted: str
    examples: tuple[str, ...] = ()
    """The first few: keys, rows, examples."""
    advice: str = ""
    """What to do next, where that is known."""
    severity: Literal["error", "warning"] = "error"
    """A warning is told, and does not fail the check."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}: found {self.found}, wanted {self.wanted}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """One check of the export by itself, or against one side."""

    check: CheckName
    side: str
    """What the export was compared with; the export's own directory, if with itself."""
    status: Status
    summary: str
    """One line: what holds, or why it was skipped."""
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
        """Failed if one of the findings is an error."""
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
        """Without the figures, which are for pictures."""
        content = asdict(self)
        del content["figures"]
        return content
