"""A file for dashboards that lists the processes of a job as its launcher sees them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.monitor.endpoint_file import write_atomically

__all__ = ["FOLDER", "JobFile", "JobProcess", "find_job"]

FOLDER = "metrics"
"""The folder in a job's log directory that processes write their addresses to."""
_NAME = "job.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProcess:
    """One process of a job."""

    role: str
    index: int
    pid: int = 0
    state: str = "running"
    """One of running, suspended, stopping, done, failed and stopped."""
    detail: str = ""
    """How the process exited, or its last line of output."""
    starts: int = 1

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFile:
    """A job as its launcher sees it."""

    script: str = ""
    pid: int = 0
    """The process ID of the launcher."""
    begun: float = 0.0
    """When the job started, in seconds since 1970."""
    ended: str = ""
    """Why the job has ended; empty while it runs."""
    processes: Sequence[JobProcess] = field(default=())
    notes: Sequence[tuple[float, str]] = field(default=())
    """Recent events, with their times."""

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write the file to `directory`, replacing an earlier one."""
        text = json.dumps(asdict(self), indent=1)
        write_atomically(os.path.join(directory, _NAME), text + "\n")

    @staticmethod
    def read(directory: str | os.PathLike[str]) -> JobFile | None:
        """Return the job that the launcher wrote to `directory`, or None if it cannot be read."""
        try:
            with open(os.path.join(directory, _NAME), encoding="utf-8") as file:
                return _job_of(json.load(file))
        except (OSError, ValueError, TypeError, LookupError):
            return None


def _job_of(found: Mapping[str, Any]) -> JobFile:
    processes = [JobProcess(**each) for each in found["processes"]]
    notes = [(float(moment), str(text)) for moment, text in found["notes"]]
    return JobFile(**{**found, "processes": processes, "notes": notes})


def find_job(place: str | os.PathLike[str]) -> str:
    """Return the folder with a job's addresses, given that folder or the job's log directory.

    Raises ConfigError if there is no such folder; the message says how to start a job that has one.
    """
    for folder in (os.path.join(place, FOLDER), os.fspath(place)):
        if JobFile.read(folder) is not None:
            return folder
    raise ConfigError(
        f"no watchable job in {os.fspath(place)!r}: start it with `sparsefleet launch "
        "--metrics ...` or `--dashboard`, and pass the --log-dir of the job (default logs)"
    )
