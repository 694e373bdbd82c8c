"""Finds the id of the job that this process belongs to, the same in a process that replaces it."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["counts_restarts", "job_id"]


def job_id(variables: Mapping[str, str] | None = None) -> str:
    """Return an id of the job that survives restarts of its processes; "" if there is none.

    It is SPARSEFLEET_JOB_ID, which the launcher sets, or what the scheduler says. In Slurm that is
    the step, since a job may run several trainings one after another. torchrun does not identify
    jobs.

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
    """Return whether the launcher counts how often it has restarted this process.

    Schedulers do not: then only the servers know whether there was a process before this one.
    """
    environ = os.environ if variables is None else variables
    return bool(environ.get("SPARSEFLEET_INCARNATION"))
