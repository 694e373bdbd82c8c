"""Which of a model's gradients ranks exchange among themselves, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.field_checks import require
from sparsefleet.modes.hybrid import HybridConfig

__all__ = ["CollectiveConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveConfig:
    """Every worker steps the dense parameters itself, with the mean of all workers' gradients.

    >>> CollectiveConfig(strategy=CollectiveStrategy(num_rings=2)).rows is None
    True
    """

    strategy: CollectiveStrategy = field(default_factory=CollectiveStrategy)
    """How gradients travel between workers, and what else belongs to their step."""

    rows: HybridConfig | None = None
    """How rows of tables on servers are sent. None: in the same step, with the mean over the
    workers. A config: in the background, as in mode "hybrid"."""

    def __post_init__(self) -> None:
        known = isinstance(self.strategy, CollectiveStrategy)
        require(known, self, "strategy", "a CollectiveStrategy")
        known = self.rows is None or isinstance(self.rows, HybridConfig)
        require(known, self, "rows", "a HybridConfig or None")
