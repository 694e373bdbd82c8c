"""The inputs to a verification: settings, the export and the examples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sparsefleet.errors import ConfigError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.verify.examples import Examples
from sparsefleet.serving.verify.offline_model import OfflineModel
from sparsefleet.serving.verify.report import CheckResult
from sparsefleet.serving.verify.side import Side

__all__ = ["Case", "Check", "VerifyConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """The settings of a verification, such as the examples to compare and the tolerance.

    >>> VerifyConfig(tolerance=-1)
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: VerifyConfig.tolerance must be >= 0, got -1
    """

    examples: str | os.PathLike[str] | None = None
    """A file with one column per input; None means the export's golden examples."""

    online_examples: str | os.PathLike[str] | None = None
    """The examples as the online side prepared them, for example its feature log, in the same
    order. If None, only the inputs that a service reports are compared.
"""

    label: str | None = None
    """The column of `examples` with labels 0 or 1. If given, both sides' AUC is reported."""

    max_examples: int = 10_000
    """The maximum number of examples to read from the file."""

    tolerance: float = 1e-5
    """The largest allowed difference between scores, relative for scores above 1. Rows and dense
    parameters must always be equal bit for bit.
"""

    sample: int | None = None
    """The number of rows per table to compare with an online store; None means all."""

    seed: int = 0
    """Seed for sampling rows."""

    previous: str | os.PathLike[str] | None = None
    """The export that was online before. If given, stale rows are reported as such."""

    updates: str | os.PathLike[str] | None = None
    """The directory or Redis where a trainer publishes updates to the export. The updates are
    applied before anything is compared, and the online side must have applied the same updates.
"""

    pruned: tuple[str, ...] = ()
    """Patterns of trained parameters and tables that the export omits on purpose."""

    expect: Mapping[str, str] = field(default_factory=dict)
    """Required settings, such as `{"engine": "onnx", "rows": "float32"}`."""

    token: str | None = None
    """The bearer token of the service."""

    timeout_s: float = 90.0
    """Timeout for one request to an online side. A service's first trace may take a minute."""

    def __post_init__(self) -> None:
        for name, least in (("max_examples", 1), ("sample", 1), ("tolerance", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"VerifyConfig.{name} must be >= {least}, got {value}")
        if not self.timeout_s > 0:
            raise ConfigError(f"VerifyConfig.timeout_s must be > 0, got {self.timeout_s}")


class Case:
    """The export under test, its examples and the settings of the verification."""

    def __init__(self, model: OfflineModel, config: VerifyConfig) -> None:
        self.model = model
        self.config = config

    @cached_property
    def previous(self) -> OfflineModel | None:
        where = self.config.previous
        return None if where is None else OfflineModel(where)

    @cached_property
    def examples(self) -> Examples:
        config, schema = self.config, self.model.schema
        if config.examples is None:
            return Examples.of_golden(schema, self.model.golden)
        path = Path(config.examples)
        return Examples.of_file(path, schema, label=config.label, limit=config.max_examples)

    def read_examples(self) -> None:
        """Read the examples now, so that a bad file is reported before any check runs."""
        _ = self.examples

    @cached_property
    def scores(self) -> Arrays:
        """The export's predictions for the examples."""
        return self.model.predict(self.examples)

    def catch_up(self) -> None:
        """Apply to the export all updates published since the last call."""
        self.model.catch_up()
        self.__dict__.pop("scores", None)


class Check(Protocol):
    """One of the five checks. Model defects become findings; other problems are raised."""

    def of_export(self, case: Case) -> CheckResult | None:
        """Check the export alone; return None if the check does not apply."""

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        """Compare the export with another copy of the model; return None if not applicable."""
