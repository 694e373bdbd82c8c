"""Checks which job owns a checkpoint directory before resuming from it or saving to it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparsefleet.checkpoint import ListedCheckpoint, list_checkpoints
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.checkpoint.series import SeriesOwner
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["claim_series", "owner_of_series", "require_own_series"]

_log = logging.getLogger("sparsefleet.engine")


def require_own_series(
    distributed: BoundModel, directory: str, checkpoints: CheckpointConfig
) -> set[str]:
    """Check that a run may resume from a directory; return the checkpoints that it must not use.

    These are older than the last run that started from scratch in the directory. Raises
    CheckpointMismatchError if the checkpoints belong to a different job. Runs in the first worker.
    """
    options = checkpoints.storage_options
    owner = SeriesOwner.of(directory, options)
    if owner is None:  # written by an older version, or by hand
        return set()
    listed = list_checkpoints(directory, options)
    _require_same_job(_owner_for(distributed, checkpoints), owner, directory, listed)
    return {each.path for each in listed if _generation(each) < owner.generation}


def claim_series(
    distributed: BoundModel, checkpoints: CheckpointConfig, resumed_from: str | None
) -> SeriesOwner | None:
    """Make this run the owner of its directory; return None in workers that do not write.

    resumed_from: the checkpoint that the run continues; None if the run starts from scratch, which
        starts a new generation.

    Raises CheckpointMismatchError if the directory's checkpoints belong to a different job. Must be
    called by all workers.
    """
    directory = absolute_path(checkpoints.directory)
    owners: list[SeriesOwner] = []

    def claim(_: list[bytes]) -> bytes:
        mine = _owner_for(distributed, checkpoints)
        owners.append(_claim(mine, directory, checkpoints.storage_options, resumed_from))
        return b""

    distributed.meeting.decide(b"", claim)
    return owners[0] if owners else owner_of_series(distributed, checkpoints)


def owner_of_series(distributed: BoundModel, checkpoints: CheckpointConfig) -> SeriesOwner | None:
    """Return this run as the owner it became earlier, or None in workers that do not write."""
    if not distributed.role.is_first_worker:
        return None
    return SeriesOwner.of(absolute_path(checkpoints.directory), checkpoints.storage_options)


def _claim(
    mine: SeriesOwner, directory: str, options: Mapping[str, Any] | None, resumed_from: str | None
) -> SeriesOwner:
    before = SeriesOwner.of(directory, options)
    listed = list_checkpoints(directory, options)
    continues = resumed_from is not None and any(
        _is_same_place(each.path, resumed_from) for each in listed
    )
    if before is not None and not continues:
        _require_same_job(mine, before, directory, listed)
    generation = 1 if before is None else before.generation
    if not continues and listed:
        generation += 1
        _log.warning(
            "%s contains %d checkpoints from an earlier run of this job, but this one starts "
            "from scratch (generation %d), so they are removed as new ones are saved. To keep "
            "them, use a different directory; to continue from them, use resume='auto'",
            directory,
            len(listed),
            generation,
        )
    return SeriesOwner(job=mine.job, model=mine.model, generation=generation).claim(
        directory, options
    )


def _is_same_place(path: str, other: str) -> bool:
    """Return whether two paths lead to the same checkpoint, possibly through links."""
    is_remote = "://" in path or "://" in other
    return path == other or (not is_remote and os.path.realpath(path) == os.path.realpath(other))


def _require_same_job(
    mine: SeriesOwner, owner: SeriesOwner, directory: str, listed: list[ListedCheckpoint]
) -> None:
    if not listed or mine.is_job_of(owner):
        return
    what = "a different model" if mine.job == owner.job else f"{owner}, and this is {mine}"
    raise CheckpointMismatchError(
        f"{directory}: its checkpoints ({len(listed)}) belong to {what}. Give this job its "
        f"own directory; to continue from one of them, pass resume={listed[-1].path!r}. Runs that "
        "belong to one job despite different arguments need the same CheckpointConfig(job=...) or "
        "SPARSEFLEET_JOB"
    )


def _generation(listed: ListedCheckpoint) -> int:
    found = None if listed.manifest is None else listed.manifest.generation
    return 1 if found is None else found


def _owner_for(distributed: BoundModel, checkpoints: CheckpointConfig) -> SeriesOwner:
    job = checkpoints.job or os.environ.get("SPARSEFLEET_JOB") or _command()
    shapes = {name: list(shape) for name, shape in distributed.tensors.shapes().items()}
    tables = {name: spec.dim for name, spec in distributed.tables.items()}
    return SeriesOwner(job=job, model=_digest([shapes, tables]))


def _command() -> str:
    """Return the script's name and a digest of its arguments, since these may hold secrets.

    Return "" in a notebook or wherever there is no script.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script:
        return ""
    name, arguments = os.path.basename(script), sys.argv[1:]
    return f"{name} with arguments {_digest(arguments)}" if arguments else name


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
