"""Convert a single-process program into the programs that a job's workers and servers run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.program_role import ProgramRole
from sparsefleet.fluid.distributed.program_training import ProgramTraining
from sparsefleet.fluid.distributed.saved_values import FolderLoad
from sparsefleet.fluid.distributed.update_rules import (
    ModelSource,
    ServedTables,
    Update,
    counter_names,
    updates_of,
)
from sparsefleet.fluid.framework import Operator, Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.modes import GeoConfig, ModeConfig
from sparsefleet.optim import SGD
from sparsefleet.server import ServerConfig, run_server
from sparsefleet.server.run_server import durable_settings

__all__ = [
    "ProgramServer",
    "model_source",
    "require_apart",
    "rewrite_for_worker",
    "train_on_servers",
]


def model_source(
    program: Program,
    startup: Program,
    mode: str | ModeConfig,
    *,
    name: str,
    min_block_size: int = 8192,
) -> ModelSource:
    """Return the program that a job trains.

    Raises ConfigError if it updates a parameter in a way that servers do not support.

    name: the name of the training run, the same in all processes of the job and different for each
        program.
    """
    if program._distributed is not None:
        raise ConfigError(
            "this program already belongs to a parameter-server job; create a new program"
        )
    if any(op.type == "merge_gradients" for op in program.global_block().ops):
        raise ConfigError(
            "GradientMergeOptimizer is not supported, because servers update after every batch; "
            "use larger batches instead"
        )
    updates = updates_of(program, startup, decay_here=isinstance(mode, GeoConfig))
    if isinstance(mode, GeoConfig):
        for update in updates:
            plain = update.optimizer
            if type(plain) is not SGD or plain.l1 or plain.l2:
                raise ConfigError(
                    f"parameter '{update.parameter.name}' is updated by {plain!r}, but GEO adds up "
                    "the workers' own changes, which only makes sense for plain SGD; "
                    "use fluid.optimizer.SGD without regularization"
                )
    tables = ServedTables(updates, name)
    counter_names(program, list(tables.rate_of().values()))  # rejects learning rates that are fed
    return ModelSource(
        program=program.clone(),
        startup=startup.clone(),
        tables=tables,
        name=name,
        min_block_size=min_block_size,
    )


def require_apart(first: ModelSource, second: ModelSource) -> None:
    """Raise ConfigError if one program uses a dense parameter that another program updates.

    Each training run has its own dense values, so neither program would see the other's updates.
    Tables are shared.
    """
    for one, other in ((first, second), (second, first)):
        updated = {u.parameter.name for table in one.tables.dense for u in table.updates}
        both = sorted(updated & {parameter.name for parameter in other.program.all_parameters()})
        if both:
            raise ConfigError(
                f"parameter '{both[0]}' is updated by one program in this job and used by another, "
                "but programs that train on servers can only share embeddings with "
                "is_sparse=True; use a different name in one of them, or train both losses in one "
                "program"
            )


def train_on_servers(
    program: Program,
    startup: Program,
    source: ModelSource,
    mode: str | ModeConfig,
    role: RoleInfo,
) -> ProgramTraining:
    """Convert both programs, in place, into the programs that a worker runs."""
    training = ProgramTraining(source, mode, role)
    rewrite_for_worker(program, startup, source.tables.updates, training)
    return training


def rewrite_for_worker(
    program: Program, startup: Program, updates: Sequence[Update], role: ProgramRole
) -> None:
    """Change both programs in place.

    The main program sends gradients where it used to update parameters. The startup program
    fetches the values that servers hold instead of initializing them.
    """
    block = program.global_block()
    block.ops = [op for op in block.ops if op.role != "optimize"]
    sent = {update.gradient for update in updates}
    block.ops = _without_unused(block.ops, sent)
    with program.role_guard("optimize"):
        block.append_op(
            "send",
            {"X": [update.gradient for update in updates]},
            {},
            {"parameters": [update.parameter.name for update in updates]},
        )
    program._distributed = role
    parameters = block.learned_parameters()
    served = {parameter.name for parameter in parameters}
    fetched = {parameter.name for parameter in parameters if not parameter.is_table}
    kept = {name for update in updates for name in (*update.state.values(), *update.powers)}
    first = startup.global_block()
    first.ops = [op for op in first.ops if not served | kept >= set(op.output_arg_names)]
    first.append_op("recv", {}, {"Out": sorted(fetched & first.vars.keys())})
    startup._distributed = role
    program.changed()
    startup.changed()


def _without_unused(ops: Sequence[Operator], sent: set[str]) -> list[Operator]:
    """Return the operators, omitting the weight decay operators, since servers apply weight
    decay.
    """
    wanted = set(sent)
    kept: list[Operator] = []
    for op in reversed(ops):
        made = set(op.output_arg_names)
        if op.type != "decay_gradient" or made & wanted:
            kept.append(op)
            wanted.update(op.input_arg_names)
    return kept[::-1]


class ProgramServer(ProgramRole):
    """A server in a job. Its tables and update rules are defined by the workers."""

    def __init__(self, role: RoleInfo, source: ModelSource) -> None:
        self.role = role
        self._source = source
        self._folder: FolderLoad | None = None

    def __str__(self) -> str:
        return f"the program of server {self.role.index} ({self.role.current_endpoint})"

    def main_program(self) -> Program:
        """Return the program that serves until the job ends."""
        made = Program()
        made.global_block().append_op("listen_and_serve")
        made._distributed = self
        return made

    def startup_program(self) -> Program:
        """Return the startup program, to be run first. Initial values may be loaded afterwards."""
        made = Program()
        made.global_block().append_op("prepare_server")
        made._distributed = self
        return made

    def get_ready(self, scope: Scope) -> None:
        del scope  # workers and the server's tables hold the values

    def serve(self) -> None:
        load = self._folder
        config = ServerConfig(
            endpoint=self.role.current_endpoint or self.role.server_endpoints[self.role.index],
            index=self.role.index,
            num_servers=self.role.server_num,
            transport=os.environ.get("SPARSEFLEET_TRANSPORT", "auto"),  # type: ignore[arg-type]
            has_successor=load is None,
            notes={} if load is None else load.first_note(),
            **durable_settings(self.role.index),
        )
        if load is None:
            run_server(config)
        else:
            with load:
                run_server(config)

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """Make the first server load the folder for all servers once it is running."""
        if self.role.index == 0:
            self._folder = FolderLoad(self._source, self.role, os.path.abspath(folder), filename)
