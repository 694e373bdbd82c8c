"""The plans learnt from the batches of one training."""

from __future__ import annotations

from typing import Any

from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.step_rows import StepRows

_MAX_PLANS = 8


class LookupPlans:
    """A plan for each layout of batches seen lately. Thread-safe.

    >>> plans = LookupPlans()
    >>> plans.lookups({"ads": 1}) is None
    True
    """

    def __init__(self) -> None:
        self._plans: tuple[LookupPlan, ...] = ()  # replaced whole, never changed
        self._most_lookups = 0  # of a step that a plan was learnt from

    def lookups(self, batch: Any) -> list[Lookup] | None:
        """The lookups that the batch will cause; None if no batch like it was seen before."""
        for plan in self._plans:
            lookups = plan.lookups(batch)
            if lookups is not None:
                return lookups
        return None

    def learn(self, rows: StepRows, batch: Any) -> None:
        """Learns from a step whose input was `batch`."""
        # Newest first; shapes that keep changing push out the oldest.
        self._plans = (LookupPlan.learn(rows, batch), *self._plans[: _MAX_PLANS - 1])
        self._most_lookups = max(self._most_lookups, len(rows.lookups))

    def learn_more(self, rows: StepRows, batch: Any) -> None:
        """Learns anew from a step that looked up more than any before: plans may be of
        evaluation, which does not look up all that training does."""
        if len(rows.lookups) > self._most_lookups:
            self.learn(rows, batch)
