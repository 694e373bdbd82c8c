"""From a program that trains by itself to the programs of a job."""

from __future__ import annotations

from itertools import count

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.program_model import ModelSource
from sparsefleet.fluid.distributed.program_training import ProgramTraining
from sparsefleet.fluid.distributed.served_tables import ServedTables
from sparsefleet.fluid.distributed.trainer_program import rewrite_for_worker
from sparsefleet.fluid.distributed.update_rules import updates_of
from sparsefleet.fluid.framework import Program
from sparsefleet.modes import GeoConfig, ModeConfig
from sparsefleet.optim import SGD

__all__ = ["model_source", "train_on_servers"]

_numbers = count(1)  # all processes of a job distribute the same programs in the same order


def model_source(
    program: Program, startup: Program, mode: str | ModeConfig, *, min_block_size: int = 8192
) -> ModelSource:
    """What a job trains of a program. Raises ConfigError for an update that servers cannot do."""
    if program._distributed is not None:
        raise ConfigError("this program was made one of a parameter-server job before")
    updates = updates_of(program, startup, decay_here=isinstance(mode, GeoConfig))
    if isinstance(mode, GeoConfig):
        for update in updates:
            plain = update.optimizer
            if type(plain) is not SGD or plain.l1 or plain.l2:
                raise ConfigError(
                    f"parameter '{update.parameter.name}' is updated by {plain!r}: GEO adds up the "
                    "workers' own changes, which makes sense for plain SGD only"
                )
    name = f"program-{next(_numbers)}"
    return ModelSource(
        program=program.clone(),
        startup=startup.clone(),
        tables=ServedTables(updates, name),
        name=name,
        min_block_size=min_block_size,
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
