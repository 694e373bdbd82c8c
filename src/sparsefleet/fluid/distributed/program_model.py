"""A program's parameters bound to the servers, or to a store in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsefleet.fleet.dense_optimizer import DenseGroup
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.loading import wait_until_loaded
from sparsefleet.fluid.distributed.program_module import ProgramModule
from sparsefleet.fluid.distributed.rate_program import RateProgram, TableRates
from sparsefleet.fluid.distributed.served_tables import ServedTables, at_rate
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.scope import Scope
from sparsefleet.modes import ModeConfig
from sparsefleet.store import Rows

__all__ = ["ModelSource", "ProgramModel"]

_CHUNK_ROWS = 65536
_CONNECT_S = 600.0  # Fluid's workers wait for servers without an end


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A program after `minimize`, before it was changed for its role."""

    program: Program
    startup: Program
    tables: ServedTables
    name: str
    """What the training is called on the servers."""
    min_block_size: int = 8192
    """Elements of a dense table; fewer are not worth another server."""


class ProgramModel(DistributedModel):
    """A `DistributedModel` of what a program trains; first values are the first worker's."""

    def __init__(self, source: ModelSource, mode: str | ModeConfig, role: RoleInfo) -> None:
        self.first_values = Scope()
        Executor().run(source.startup, scope=self.first_values)
        tables = source.tables
        rate_of = tables.rate_of()
        self.rates = RateProgram(source.program, list(rate_of.values()), self.first_values)
        first_rates = self.rates.at(0)
        self.module = ProgramModule(
            source.program,
            source.startup,
            self.first_values,
            table_optimizers={
                name: at_rate(update.optimizer, first_rates[update.rate])
                for name, update in tables.sparse.items()
            },
            updated=frozenset(u.parameter.name for table in tables.dense for u in table.updates),
        )
        groups = [
            DenseGroup(
                table=table.name,
                index=number,
                parameters=[self.module.parameter_of[u.parameter.name] for u in table.updates],
                optimizer=at_rate(table.optimizer, first_rates[table.rate]),
                min_block_size=source.min_block_size,
            )
            for number, table in enumerate(tables.dense)
        ]
        super().__init__(
            self.module,
            groups,
            mode,
            role=role,
            schedule=None if self.rates.is_constant else TableRates(self.rates, rate_of),
            name=source.name,
            connect_s=_CONNECT_S,
        )
        self._source = source
        del self.first_values

    def begin_at(self, steps: int) -> None:
        """The schedule goes on there, if it is not further already. Before `start`."""
        self._steps = max(self._steps, steps)

    def _first_values(self) -> None:
        if self.role.is_first_worker:
            steps = wait_until_loaded(self.store, self.name, self.wait_s)
            if steps is None:
                super()._first_values()
                self._fill_tables()
            else:
                self.begin_at(steps)

    def _fill_tables(self) -> None:
        """Tables that begin with given rows get them."""
        for name, values in self.module.whole_values.items():
            import_whole(self, name, values.numpy())


def import_whole(model: DistributedModel, name: str, values: np.ndarray) -> None:
    """Rows of ids 0, 1, ... of a table: float32[N, D]."""
    no_state, no_counters = np.empty((0, 0), np.float32), np.empty((0, 0), np.uint32)
    for begin in range(0, len(values), _CHUNK_ROWS):
        part = np.ascontiguousarray(values[begin : begin + _CHUNK_ROWS], np.float32)
        keys = np.arange(begin, begin + len(part), dtype=np.uint64)
        model.store.import_rows(name, Rows(keys, part, no_state, no_counters))
