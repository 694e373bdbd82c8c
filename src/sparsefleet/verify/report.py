"""What came of a run of the gate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sparsefleet.verify.finding import CHECKS, CheckResult, Finding

__all__ = ["Report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All results, those of the export itself first, then those of each side."""

    directory: str
    version: str
    created: str
    """When the model was exported, and when this report was made."""
    examples: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether all checks hold; those that were skipped do not count."""
        return all(result.status != "failed" for result in self.results)

    @property
    def findings(self) -> tuple[tuple[CheckResult, Finding], ...]:
        """All that is wrong, likely causes before what they bring about."""
        found = [(result, finding) for result in self.results for finding in result.findings]
        return tuple(
            sorted(found, key=lambda item: (item[1].severity, CHECKS.index(item[0].check)))
        )

    @property
    def cause(self) -> tuple[CheckResult, Finding] | None:
        """The first error: what to look at first; None if there is none."""
        errors = [item for item in self.findings if item[1].severity == "error"]
        return errors[0] if errors else None

    def to_json(self) -> str:
        """All but the figures."""
        content: dict[str, Any] = {
            "passed": self.passed,
            "directory": self.directory,
            "version": self.version,
            "created": self.created,
            "examples": self.examples,
            "results": [result.to_json() for result in self.results],
        }
        return json.dumps(content, indent=1) + "\n"
