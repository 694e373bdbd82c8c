"""What all checks of one run share."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Protocol

from sparsefleet.export.feeds import Arrays
from sparsefleet.verify.examples import Examples
from sparsefleet.verify.finding import CheckResult
from sparsefleet.verify.offline_model import OfflineModel
from sparsefleet.verify.side import Side
from sparsefleet.verify.verify_config import VerifyConfig

__all__ = ["Case", "Check"]


class Case:
    """The export under test, the examples and what the gate is to hold them to."""

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
        """Reads them now, so that a file that cannot be meant is told before anything else."""
        _ = self.examples

    @cached_property
    def scores(self) -> Arrays:
        """What the export says of the examples."""
        return self.model.predict(self.examples)

    def catch_up(self) -> None:
        """Takes up updates of the export that have come since."""
        self.model.catch_up()
        self.__dict__.pop("scores", None)


class Check(Protocol):
    """One of the five. Problems of the model are findings; what is raised is not of the model."""

    def of_export(self, case: Case) -> CheckResult | None:
        """The export by itself; None: it has nothing to say of that."""

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        """The export against a side; None: a side of this kind has nothing to say of that."""
