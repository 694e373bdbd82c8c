"""From a program that trains by itself to the programs of a job."""

from __future__ import annotations

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.model_source import ModelSource
from sparsefleet.fluid.distributed.program_training import ProgramTraining
from sparsefleet.fluid.distributed.rate_program import counter_names
from sparsefleet.fluid.distributed.served_tables import ServedTables
from sparsefleet.fluid.distributed.trainer_program import rewrite_for_worker
from sparsefleet.fluid.distributed.update_rules import updates_of
from sparsefleet.fluid.framework import Program
from sparsefleet.modes import GeoConfig, ModeConfig
from sparsefleet.optim import SGD

__all__ = ["model_source", "require_apart", "train_on_servers"]


def model_source(
    program: Program,
    startup: Program,
    mode: str | ModeConfig,
    *,
    name: str,
    min_block_size: int = 8192,
) -> ModelSource:
    """What a job trains of a program. Raises ConfigError for an update that servers cannot do.

    name: the same in all processes of the job; another for each program.
    """
    if program._distributed is not None:
        raise ConfigError("this program was made one of a parameter-server job before")
    if any(op.type == "merge_gradients" for op in program.global_block().ops):
        raise ConfigError(
            "GradientMergeOptimizer: servers update with each batch; give them larger batches"
        )
    updates = updates_of(program, startup, decay_here=isinstance(mode, GeoConfig))
    if isinstance(mode, GeoConfig):
        for update in updates:
            plain = update.optimizer
            if type(plain) is not SGD or plain.l1 or plain.l2:
                raise ConfigError(
                    f"parameter '{update.parameter.name}' is updated by {plain!r}: GEO adds up the "
                    "workers' own changes, which makes sense for plain SGD only"
                )
    tables = ServedTables(updates, name)
    counter_names(program, list(tables.rate_of().values()))  # refuses rates that are fed
    return ModelSource(
        program=program.clone(),
        startup=startup.clone(),
        tables=tables,
        name=name,
        min_block_size=min_block_size,
    )


def require_apart(first: ModelSource, second: ModelSource) -> None:
    """Raises ConfigError if one program has a dense parameter that the other updates.

    Each training keeps dense values of its own, which the other would not see change. Tables are
    the same for both.
    """
    for one, other in ((first, second), (second, first)):
        updated = {u.parameter.name for table in one.tables.dense for u in table.updates}
        both = sorted(updated & {parameter.name for parameter in other.program.all_parameters()})
        if both:
            raise ConfigError(
                f"parameter '{both[0]}' is updated by one program of this job and used by another: "
                "programs that train on servers can only share embeddings with is_sparse=True; "
                "give it another name there, or train both losses in one program"
            )


def train_on_servers(
    program: Program,
    startup: Program,
    source: ModelSource,
    mode: str | ModeConfig,
    role: RoleInfo,
) -> ProgramTraining:
    """Changes both programs, in place, into those of a worker."""
    training = ProgramTraining(source, mode, role)
    rewrite_for_worker(program, startup, source.tables.updates, training)
    return training
