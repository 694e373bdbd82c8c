"""A directory of server logs that outlives the launcher, so that a new one can continue the job."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sparsefleet.errors import ConfigError
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.server.run_server import SUCCESSOR_FILE
from sparsefleet.store.own_loop import own_loop_path

__all__ = ["KeptState"]

_JOB_FILE = "job.json"
_LOCK_FILE = "lock"
_LOGS = "servers"
_OUTBOXES = "outboxes"


class KeptState:
    """The state of a job in `config.state_dir`, locked while open.

    Raises ConfigError if another launcher uses the directory, if it belongs to a different kind of
    job, or if a worker would train on the same data again.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self._place = Path(os.path.abspath(config.state_dir))
        self._shape = {"servers": config.num_servers, "workers": config.num_workers}
        self._repeats_own_loops = config.restart in ("killed", "failed")
        self.job_id = ""
        """The id of the job being continued, or empty if there is none."""

    @property
    def logs(self) -> str:
        """Return the directory of the servers' logs."""
        return str(self._place / _LOGS)

    @property
    def outboxes(self) -> str:
        """Return the directory for data that workers leave for their successors."""
        return str(self._place / _OUTBOXES)

    @contextlib.contextmanager
    def opened(self) -> Iterator[KeptState]:
        """Lock the directory and determine which job it belongs to."""
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / _LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"--state-dir {self._place} is in use by another launcher; wait until that one "
                    "exits, or choose a different directory"
                ) from None
            self._find()
            yield self

    def _find(self) -> None:
        path = self._place / _JOB_FILE
        if not path.exists():
            others = [found.name for found in self._place.iterdir() if found.name != _LOCK_FILE]
            if others:
                raise ConfigError(
                    f"--state-dir {self._place} contains {others[0]!r} but no {_JOB_FILE}; use an "
                    "empty directory, or the state directory of an earlier job"
                )
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            job_id, shape = str(found["job"]), found["shape"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged: {error!r}; remove {self._place}") from error
        if shape != self._shape:
            raise ConfigError(
                f"--state-dir {self._place} belongs to a job with {shape}, but this one has "
                f"{self._shape}; use the same numbers or a different directory"
            )
        looping = [
            index
            for index in range(self._shape["workers"])
            if os.path.exists(own_loop_path(self.logs, index))
        ]
        if looping and not self._repeats_own_loops:
            raise ConfigError(
                f"the job in --state-dir {self._place} cannot be continued: worker {looping[0]} "
                "trained in a custom loop (fleet.step, Executor.run, RemoteStore), which would "
                "repeat updates that the servers have already applied; remove the directory to "
                "start from scratch, or use --restart killed if the script continues its loop "
                "itself"
            )
        self.job_id = job_id

    def begin(self, job_id: str) -> None:
        """Start a new job in the directory, removing its contents."""
        self.remove()
        for folder in (self.logs, self.outboxes):
            os.makedirs(folder)
        draft = self._place / f"{_JOB_FILE}.tmp"
        draft.write_text(json.dumps({"job": job_id, "shape": self._shape}), encoding="utf-8")
        draft.replace(self._place / _JOB_FILE)
        self.job_id = job_id

    def continue_job(self) -> None:
        """Prepare to restart the job's processes, whose addresses may be different now."""
        for path in Path(self.logs).glob(f"*/{SUCCESSOR_FILE}"):
            path.unlink()

    def plan(self, plan: ProcessPlan) -> ProcessPlan:
        """Return the plan for a process that continues the job; a worker resumes its old rank."""
        return replace(plan, appends_log=True, incarnation=int(plan.role == "worker"))

    def remove(self) -> None:
        """Remove the state, because the job has succeeded or is starting over."""
        (self._place / _JOB_FILE).unlink(missing_ok=True)
        for folder in (self.logs, self.outboxes):
            shutil.rmtree(folder, ignore_errors=True)
        self.job_id = ""
