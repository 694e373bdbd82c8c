"""Finds the ID of this process's job, which stays the same when the process is restarted."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["counts_restarts", "job_id"]


def job_id(variables: Mapping[str, str] | None = None) -> str:
    """Return a job ID that survives restarts of its processes, or "" if there is none.

    The ID is SPARSEFLEET_JOB_ID, which the launcher sets, or the scheduler's ID. For Slurm, the ID
    includes the step, since a job may contain several training runs in sequence. torchrun does not
    identify jobs.

    >>> job_id({"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "17"})
    'slurm-17.0'
    """
    environ = os.environ if variables is None else variables
    if environ.get("SPARSEFLEET_JOB_ID"):
        return environ["SPARSEFLEET_JOB_ID"]
    if environ.get("JOBSET_NAME"):
        return f"jobset-{environ.get('JOBSET_UID') or environ['JOBSET_NAME']}"
    if environ.get("SLURM_STEP_ID"):
        first = environ.get("SLURM_JOB_ID_HET_GROUP_0") or environ.get("SLURM_JOB_ID", "")
        return f"slurm-{first}.{environ['SLURM_STEP_ID']}"
    return ""


def counts_restarts(variables: Mapping[str, str] | None = None) -> bool:
    """Return whether the launcher counts its restarts of this process.

    Schedulers do not count restarts, so only the servers know whether this process replaces an
    earlier process.
    """
    environ = os.environ if variables is None else variables
    return bool(environ.get("SPARSEFLEET_INCARNATION"))
