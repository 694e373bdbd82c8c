"""A program's parameters, bound to the servers or to a local store."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.dense_groups import DenseGroup
from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.engine.model_checkpoint import LoadRequest
from sparsefleet.engine.model_tensors import ModelTensors
from sparsefleet.engine.placement import StorePlacement
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.saved_values import load_tables, read_unserved, wait_until_loaded
from sparsefleet.fluid.distributed.update_rules import ModelSource, RateProgram, TableRates, at_rate
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.executor.program_workload import ProgramWorkload
from sparsefleet.fluid.executor.scope_model import (
    ScopeTensors,
    kept_tensors,
    make_missing,
    program_random_state,
    set_program_random_state,
)
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.framework.sparse_parameter import initializer_of, whole_rows
from sparsefleet.fluid.lowering.tables import table_seed
from sparsefleet.modes import ModeConfig
from sparsefleet.nn import SparseEmbedding
from sparsefleet.store.row_streams import import_chunks

__all__ = ["ProgramModel", "ProgramModule", "ProgramPlacement"]


class ProgramModule(nn.Module):
    """Holds tables (as SparseEmbedding), dense parameters and frozen parameters, by name.

    first_values: a scope in which the startup program has run.
    table_optimizers: optimizers of the updated parameters in tables.
    updated: names of the updated dense parameters.
    """

    def __init__(
        self,
        program: Program,
        startup: Program,
        first_values: Scope,
        *,
        table_optimizers: Mapping[str, optim.Optimizer],
        updated: frozenset[str],
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList()
        self.dense = nn.ParameterDict()
        self.parameter_of: dict[str, nn.Parameter] = {}
        """Dense parameters by their name in the program."""
        self.whole_values: dict[str, torch.Tensor] = {}
        """Table -> explicit initial rows, [ids, D], for tables that have them."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Shapes of tables."""
        for parameter in program.global_block().learned_parameters():
            name = parameter.name
            if parameter.is_table:
                optimizer = table_optimizers.get(name, optim.SGD(lr=0.0))
                op = _filler(startup, name)
                # Must be equal in all processes, so it cannot be random if the program has no seed.
                seed = table_seed(startup, op, startup.random_seed)
                self._add_table(parameter, op, seed, optimizer)
            else:
                value = _first_value(first_values, parameter)
                made = nn.Parameter(value, requires_grad=name in updated)
                # Names with dots are not valid attribute names.
                self.dense[name.replace(".", "/")] = self.parameter_of[name] = made

    def _add_table(
        self, parameter: Parameter, op: Operator, seed: int, optimizer: optim.Optimizer
    ) -> None:
        name = parameter.name
        initializer = initializer_of(op.type, op.attrs)
        if initializer is None:
            if op.type != "assign_value":
                raise ConfigError(
                    f"the startup program initializes table '{name}' with '{op.type}', which "
                    "servers do not support; use fluid.initializer.Uniform, Normal, Constant or "
                    "NumpyArray"
                )
            values = torch.tensor(op.attrs["values"], dtype=torch.float32)
            self.whole_values[name] = values.reshape(parameter.shape)
        self.shapes[name] = parameter.shape
        self.tables.append(
            SparseEmbedding(
                name,
                parameter.shape[1],
                initializer=initializer,
                optimizer=optimizer,
                seed=seed,
                unknown="initial",
            )
        )


def _filler(startup: Program, name: str) -> Operator:
    for op in startup.global_block().ops:
        if name in op.output_arg_names:
            return op
    raise ConfigError(f"the startup program does not initialize parameter '{name}'")


def _first_value(scope: Scope, parameter: Parameter) -> torch.Tensor:
    found = scope.find_var(parameter.name)
    value = None if found is None else found.value()
    if not isinstance(value, torch.Tensor):
        raise ConfigError(f"the startup program does not initialize parameter '{parameter.name}'")
    return value.detach().clone()


_CONNECT_S = 600.0  # Fluid's workers wait for servers indefinitely


class ProgramPlacement(StorePlacement):
    """Stores a program's model on servers. Checkpoints also include the values in a worker's scope.

    Explicit initial rows are written to their tables, unless servers load a folder.
    """

    def __init__(self, source: ModelSource, module: ProgramModule, rates: RateProgram) -> None:
        self._source = source
        self._module = module
        self._rates = rates
        self.scope: Scope | None = None
        """The scope with the values that servers do not hold, such as batch norm statistics."""

    def tensors(
        self,
        model: nn.Module,
        groups: Sequence[DenseGroup],
        in_tables: Mapping[str, Sequence[str]],
        stepped_by: torch.optim.Optimizer | None,
    ) -> ModelTensors:
        del groups, stepped_by
        return ScopeTensors(model, in_tables, self._kept)

    def write_first_values(self, bound: DistributedModel) -> None:
        # All workers check the result, so that all of them raise if loading fails.
        counters = wait_until_loaded(bound.store, bound.name, bound.wait_s)
        if counters is not None:
            bound.continue_schedule(self._rates.steps_at(counters))
        elif bound.role.is_first_worker:
            super().write_first_values(bound)
            for name, values in self._module.whole_values.items():
                import_chunks(bound.store, name, [whole_rows(values.numpy())])

    def load(self, bound: DistributedModel, request: LoadRequest) -> None:
        """Load a checkpoint. All workers get the values that the first worker kept in its scope."""
        super().load(bound, request)
        if bound.meeting.is_alone:
            return
        mine = bound.tensors.copy_own(self._is_kept) if bound.role.is_first_worker else {}
        first, *_ = bound.meeting.all_gather(save(mine) if mine else b"")
        if first and self.scope is not None and not bound.role.is_first_worker:
            for name, array in load_arrays(first).items():
                self.scope.var(name).hold(torch.from_numpy(array))

    def read_checkpoint(
        self, bound: DistributedModel, request: LoadRequest, *, with_tables: bool = True
    ) -> None:
        if self.scope is not None:
            saved = (request.directory, request.storage_options)
            make_missing(self._source.program, self.scope, *saved)
        super().read_checkpoint(bound, request, with_tables=with_tables)

    def _kept(self) -> dict[str, torch.Tensor]:
        if self.scope is None:
            return {}
        names = [v.name for v in self._source.program.list_vars() if self._is_kept(v.name)]
        return kept_tensors(self.scope, names)

    def _is_kept(self, name: str) -> bool:
        variable = self._source.program.global_block().vars.get(name)
        return variable is not None and variable.persistable and name not in self._served

    @cached_property
    def _served(self) -> frozenset[str]:
        """Return the names of the variables whose values are on the servers or in the module."""
        found = {*self._module.parameter_of, *self._module.shapes}
        for update in self._source.tables.updates:
            found |= {*update.state.values(), *update.powers}
        return frozenset(found)


class ProgramModel(DistributedModel):
    """A `DistributedModel` for a program, initialized by the first worker."""

    def __init__(self, source: ModelSource, mode: str | ModeConfig, role: RoleInfo) -> None:
        first_values = Scope()
        Executor().run(source.startup, scope=first_values)
        tables = source.tables
        rate_of = tables.rate_of()
        self.rates = RateProgram(source.program, list(rate_of.values()), first_values)
        first_rates = self.rates.at(0)
        self.module = ProgramModule(
            source.program,
            source.startup,
            first_values,
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
            placement=ProgramPlacement(source, self.module, self.rates),
        )
        self._source = source
        self._threads_lock = threading.Lock()
        self._present = self.threads  # threads that are still in the pass
        self.workload: ProgramWorkload | None = None
        """The workload that the current pass runs."""

    def use_scope(self, scope: Scope, workload: ProgramWorkload) -> None:
        """Set the scope and workload of the next pass. Checkpoints include the scope's values."""
        assert isinstance(self.placement, ProgramPlacement)
        self.placement.scope = scope
        self.workload = workload

    # -- threads --------------------------------------------------------------------------------

    def begin_pass(self, threads: int) -> None:
        """Prepare the training mode for a pass with this many threads, unless a pass has already
        begun.
        """
        if threads == self.threads == self._present:
            return
        self.mode.set_threads(threads)
        if not self._present:
            super().rejoin()
        self.threads = self._present = threads

    def start(self) -> None:
        """Start a pass with all threads."""
        if not self.is_started:
            super().start()
            taken = None if self.succession is None else self.succession.taken
            has_left = taken is not None and taken.has_left
            self._present = 0 if has_left else self.threads

    def leave(self) -> None:
        """Notify the training mode that the calling thread has no more data in this pass."""
        with self._threads_lock:
            self._present -= 1
        super().leave()

    def rejoin(self) -> None:
        """Let all threads take part again once they have all left, unless `begin_pass` did so."""
        if not self._present:
            super().rejoin()
            self._present = self.threads

    # -- values ---------------------------------------------------------------------------------

    def set_dense(self, held: torch.Tensor, new: torch.Tensor) -> None:
        """Set a dense parameter; the first worker also sends its value to the servers."""
        tells = self.is_started and self.role.is_first_worker and not self._has_own_copies
        if tells:
            self.flush()
        held.copy_(new)
        if tells:
            for table, values in self.flat.arrays.items():
                if np.may_share_memory(
                    values, held.numpy()
                ):  # keep other workers' updates to the other parameters
                    self.store.write_dense(table, values)

    def load_folder(
        self, folder: str | os.PathLike[str], filename: str | None
    ) -> dict[str, NDArray[Any]]:
        """Load files written by `fluid.io.save_persistables`. The first worker reads them.

        Must be called by all workers. On an error, nothing changes and all workers raise it.
        Returns the values of variables that no server holds, by name.
        """
        self.finish()

        def load(_: list[bytes]) -> bytes:
            """Load the files on the first worker, once no push is pending."""
            source = self._source
            own = read_unserved(source.tables, source.program, folder, filename)
            counters = load_tables(self.store, source.tables, source.program, folder, filename)
            self.continue_schedule(self.rates.steps_at(counters))
            return save(own)

        try:
            own = self.meeting.decide(b"", load)
            self._share_values()
        finally:
            self.start()
        return {} if own is None else load_arrays(own)

    def random_state(self) -> dict[str, Any]:
        """Return the states of all random number generators that the program uses."""
        return program_random_state(self.workload)

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `random_state`."""
        set_program_random_state(self.workload, state)
