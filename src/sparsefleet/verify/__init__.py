"""The gate between training and serving: is what is online what was trained?"""

from sparsefleet.verify.finding import CheckName, CheckResult, Finding
from sparsefleet.verify.gate import verify
from sparsefleet.verify.report import Report
from sparsefleet.verify.side import FoundRows, Side, TableFacts, Trace
from sparsefleet.verify.verify_config import VerifyConfig

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
