"""A program's parameters bound to the servers, or to a store in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save

from sparsefleet.fleet.dense_optimizer import DenseGroup
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.loading import wait_until_loaded
from sparsefleet.fluid.distributed.model_source import ModelSource
from sparsefleet.fluid.distributed.program_module import ProgramModule
from sparsefleet.fluid.distributed.rate_program import RateProgram, TableRates
from sparsefleet.fluid.distributed.saved_values import load_tables, read_unserved
from sparsefleet.fluid.distributed.served_tables import at_rate
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.scope import Scope
from sparsefleet.fluid.sparse_parameter import import_rows, whole_rows
from sparsefleet.modes import ModeConfig

__all__ = ["ProgramModel"]

_CONNECT_S = 600.0  # Fluid's workers wait for servers without an end


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

    def set_dense(self, held: torch.Tensor, new: torch.Tensor) -> None:
        """A script sets a dense parameter. What the first worker sets becomes the servers'."""
        tells = self.is_started and self.role.is_first_worker and not self._has_own_copies
        if tells:
            self.flush()
        held.copy_(new)
        if tells:
            for table, values in self.flat.arrays.items():
                if np.may_share_memory(values, held.numpy()):  # others' updates of the rest stay
                    self.store.write_dense(table, values)

    def load_folder(
        self, folder: str | os.PathLike[str], filename: str | None
    ) -> dict[str, NDArray[Any]]:
        """Takes over what `fluid.io.save_persistables` wrote, seen by the first worker.

        All workers call it; on an error nothing has changed, and all get one. Returns the values
        of what no server holds, by variable.
        """
        self.finish()

        def load(_: list[bytes]) -> bytes:
            """In the first worker, when nobody's last push is still to come."""
            source = self._source
            own = read_unserved(source.tables, source.program, folder, filename)
            self.go_on_at(load_tables(self.store, source.tables, source.program, folder, filename))
            return save(own)

        try:
            own = self.meeting.decide(b"", load)
            self._share_values()
        finally:
            self.start()
        return {} if own is None else load_arrays(own)

    def go_on_at(self, counters: Mapping[str, float]) -> None:
        """The schedule goes on there, unless it is further already."""
        self._steps = max(self._steps, self.rates.steps_at(counters))

    def _first_values(self) -> None:
        # All look at the note, so that all are told where loading fails.
        counters = wait_until_loaded(self.store, self.name, self.wait_s)
        if counters is not None:
            self.go_on_at(counters)
        elif self.role.is_first_worker:
            super()._first_values()
            self._fill_tables()

    def _fill_tables(self) -> None:
        """Tables that begin with given rows get them."""
        for name, values in self.module.whole_values.items():
            import_rows(self.store, name, whole_rows(values.numpy()))
