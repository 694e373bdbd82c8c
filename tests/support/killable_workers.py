"""Workers that are killed and started again under their rank, as a launcher does it.

They are forked from a process that has imported everything, so that a restart takes milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from typing import Any

from tests.support.servers import JOB_KEY

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.killed_worker"])
DEADLINE_S = 180.0


class KillableWorkers:
    """Runs `work(rank, *arguments)` in `count` processes, and restarts each that is killed.

    work: finds its role in the environment.
    restarts: False: who is killed stays away, and the others continue.
    restarts_failed: also restart who ends with an error, as `--restart failed`.
    variables_of: by rank, what its environment has besides that of all.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        count: int,
        work: Callable[..., None],
        *arguments: Any,
        restarts: bool = True,
        restarts_failed: bool = False,
        variables_of: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self._work = work
        self._arguments = arguments
        self._variables = {
            "SPARSEFLEET_ROLE": "worker",
            "SPARSEFLEET_WORKERS": str(count),
            "SPARSEFLEET_SERVERS": ",".join(endpoints),
            "SPARSEFLEET_JOB_KEY": JOB_KEY.decode(),
            "SPARSEFLEET_JOB_ID": os.urandom(4).hex(),
            "SPARSEFLEET_FAILOVER_WAIT_S": "60" if restarts else "0",
            "SPARSEFLEET_KEEP_GOING": "0" if restarts else "1",
        }
        self._variables_of = variables_of or {}
        self._restarts = restarts
        self._restarts_failed = restarts_failed
        self.restarts = [0] * count
        self._processes = [self._start(rank) for rank in range(count)]

    def _start(self, rank: int) -> ForkServerProcess:
        variables = {
            **self._variables,
            **self._variables_of.get(rank, {}),
            "SPARSEFLEET_INDEX": str(rank),
            "SPARSEFLEET_INCARNATION": str(self.restarts[rank]),
        }
        process = _CONTEXT.Process(
            target=_run, args=(variables, self._work, rank, *self._arguments), daemon=True
        )
        process.start()
        return process

    @property
    def are_done(self) -> bool:
        """Restarts what was killed; whether all have ended. Raises if one has failed."""
        done = True
        for rank, process in enumerate(self._processes):
            if process.is_alive():
                done = False
            elif (process.exitcode == -9 and self._restarts) or (
                process.exitcode and self._restarts_failed
            ):
                self.restarts[rank] += 1
                self._processes[rank] = self._start(rank)
                done = False
            elif process.exitcode and process.exitcode != -9:
                raise RuntimeError(f"worker {rank} ended with exit code {process.exitcode}")
        return done

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()
        self._processes[rank].join()

    def run(self, kills: int = 0, seed: int = 0, pause_s: float = 0.4) -> None:
        """Returns when all have ended; kills some at random, up to `kills` times."""
        chance = random.Random(seed)
        next_kill = time.monotonic() + chance.random() * pause_s
        end = time.monotonic() + DEADLINE_S
        try:
            while not self.are_done:
                if time.monotonic() > end:
                    raise TimeoutError(f"workers have not ended, after restarts {self.restarts}")
                if kills and time.monotonic() > next_kill:
                    kills -= 1
                    self.kill(chance.randrange(len(self._processes)))
                    next_kill = time.monotonic() + chance.random() * pause_s
                time.sleep(0.01)
        finally:
            self.close()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _run(variables: dict[str, str], work: Callable[..., None], rank: int, *arguments: Any) -> None:
    os.environ.update(variables)
    work(rank, *arguments)
