"""Utilities for online training scripts."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.fleet.program_fleet import fleet
from sparsefleet.fluid.framework.scope import Scope, global_scope
from sparsefleet.fluid.unknown_names import unknown_names
from sparsefleet.metrics.auc import auc_from_counts

__getattr__ = unknown_names("fluid.incubate.fleet.utils.fleet_util")

__all__ = ["FleetUtil"]

_log = logging.getLogger("sparsefleet.fluid")


class FleetUtil:
    """Prints and logs on the first worker, and computes metrics over all workers."""

    def __init__(self, mode: str = "transpiler") -> None:
        if mode not in ("pslib", "transpiler"):
            raise ValueError(f"mode must be 'pslib' or 'transpiler', got {mode!r}")

    def rank0_print(self, s: object) -> None:
        """Print on the first worker."""
        if fleet.worker_index() == 0:
            print(s)
            sys.stdout.flush()

    def rank0_info(self, s: object) -> None:
        """Log an info message on the first worker."""
        if fleet.worker_index() == 0:
            _log.info("%s", s)

    def rank0_error(self, s: object) -> None:
        """Log an error on the first worker."""
        if fleet.worker_index() == 0:
            _log.error("%s", s)

    def set_zero(
        self,
        var_name: str,
        scope: Scope | None = None,
        place: Any = None,
        param_type: str = "int64",
    ) -> None:
        """Set a variable in the scope, such as the counts of an AUC, to zero."""
        del place
        tensor = self._tensor(var_name, scope or global_scope())
        tensor.set(np.zeros(tensor.shape(), param_type))

    def get_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
    ) -> float:
        """Return the AUC over all workers. Must be called by all workers.

        stat_pos, stat_neg: names of the last two states that `layers.auc` returns.
        """
        positives, negatives = (
            self._total(np.array(self._tensor(name, scope or global_scope()), np.float64))
            for name in (stat_pos, stat_neg)
        )
        return auc_from_counts(positives.reshape(-1), negatives.reshape(-1))

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Print `get_global_auc` on the first worker."""
        value = self.get_global_auc(scope, stat_pos, stat_neg)
        self.rank0_print(f"{print_prefix} global auc = {value}")

    def _total(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros_like(mine)
        fleet.all_reduce_worker(mine, total)
        return total

    def _tensor(self, name: str, scope: Scope) -> Any:
        found = scope.find_var(name)
        if found is None:
            raise ValueError(f"there is no variable '{name}' in the scope")
        return found.get_tensor()
