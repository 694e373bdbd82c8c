"""The fleet of Fluid's older parameter server: other calls, the same engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet import AsyncStrategy, DistributedStrategy, DistributeTranspilerConfig
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet, ProgramOptimizer
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import global_scope
from sparsefleet.fluid.io.saving import TableLayout
from sparsefleet.fluid.optimizer import Optimizer

__all__ = ["PslibFleet", "fleet"]


class PslibFleet(ProgramFleet):
    """Trains asynchronously, whatever pslib's settings say.

    Tables are identified by the names of their parameters, not by numbers.
    """

    def distributed_optimizer(
        self,
        optimizer: Optimizer,
        strategy: Mapping[str, Any]
        | DistributedStrategy
        | DistributeTranspilerConfig
        | None = None,
    ) -> ProgramOptimizer:
        """Return a `ProgramFleet` optimizer; a dict of pslib's settings means async."""
        if strategy is None or isinstance(strategy, Mapping):
            strategy = AsyncStrategy()
        return super().distributed_optimizer(optimizer, strategy)

    def init_server(self, model_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Start as a `ProgramFleet` does; pslib's reading settings are ignored."""
        del settings
        super().init_server(model_dir)

    def save_persistables(  # type: ignore[override]
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        *,
        table_layout: TableLayout | None = None,
        **settings: Any,
    ) -> None:
        """Save as a `ProgramFleet` does; all of pslib's modes save everything."""
        if settings.get("mode", 0) not in (0, 1, 2, 3):
            raise ConfigError(f"mode must be one of pslib's 0 to 3, got {settings['mode']!r}")
        super().save_persistables(executor, dirname, main_program, table_layout=table_layout)

    def shrink_sparse_table(self) -> None:
        """Remove the rows selected by the tables' eviction rules; programs declare none."""
        model = self.model
        for table in model.tables:
            model.store.shrink(table)

    def shrink_dense_table(
        self, decay: float, emb_dim: int = 11, scope: Any = None, table_id: int | None = None
    ) -> None:
        """Decay the sums of data_norm layers: multiply each by `decay`."""
        del emb_dim, table_id
        for name in self._sums():
            found = (scope or global_scope()).find_var(name)
            if found is not None and found.value() is not None:
                tensor = found.get_tensor()
                tensor.set(np.array(tensor) * np.float32(decay))

    def _sums(self) -> list[str]:
        program = self._minimized(self._origin_program)
        endings = (".batch_size", ".batch_square_sum", ".batch_sum")
        return [v.name for v in program.all_parameters() if v.name.endswith(endings)]


fleet = PslibFleet()
"""The fleet object of this process under the name `pslib`."""
