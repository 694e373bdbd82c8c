"""Verify that the model being served is the model that was trained."""

from sparsefleet.serving.verify.case import VerifyConfig
from sparsefleet.serving.verify.report import CheckName, CheckResult, Finding, Report
from sparsefleet.serving.verify.side import FoundRows, Side, TableFacts, Trace
from sparsefleet.serving.verify.verification import verify

__all__ = [
    "CheckName",
    "CheckResult",
    "Finding",
    "FoundRows",
    "Report",
    "Side",
    "TableFacts",
    "Trace",
    "VerifyConfig",
    "verify",
]
