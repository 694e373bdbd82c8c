"""Workers that are killed and restarted with the same rank, as by a launcher.

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
STEP_S = 0.004
STEPS_BETWEEN_KILLS = 24
STEPS_AHEAD = 12
UNLIMITED = 1 << 30


class Pace:
    """Counts the steps of all workers, and holds them back while a kill is overdue.

    Kills therefore come between steps on any machine: a fast one does not end before the first
    kill, and on a slow one most of them do not hit processes that still start. Without locks,
    which a killed process would keep for ever.
    """

    def __init__(self, workers: int) -> None:
        self._steps = _CONTEXT.RawArray("q", workers)
        self._limit = _CONTEXT.RawValue("q", UNLIMITED)

    @property
    def steps(self) -> int:
        return sum(self._steps)

    def step(self, rank: int) -> None:
        """Worker `rank` begins a step."""
        self._steps[rank] += 1
        time.sleep(STEP_S)
        while self.steps > self._limit.value:
            time.sleep(STEP_S)

    def hold_after(self, steps: int) -> None:
        self._limit.value = steps


_pace_here: tuple[Pace, int] | None = None


def pace() -> None:
    """What each worker calls once per step."""
    if _pace_here is not None:
        shared, rank = _pace_here
        shared.step(rank)


class KillableWorkers:
    """Runs `work(rank, *arguments)` in `count` processes, and restarts each that is killed.

    work: finds its role in the environment, and calls `pace()` in each step.
    restarts: False: killed workers stay away, and the others continue.
    restarts_failed: also restart workers that end with an error, like `--restart failed`.
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
        self._pace = Pace(count)
        self._processes = [self._start(rank) for rank in range(count)]

    def _start(self, rank: int) -> ForkServerProcess:
        variables = {
            **self._variables,
            **self._variables_of.get(rank, {}),
            "SPARSEFLEET_INDEX": str(rank),
            "SPARSEFLEET_INCARNATION": str(self.restarts[rank]),
        }
        process = _CONTEXT.Process(
            target=_run,
            args=(self._pace, variables, self._work, rank, *self._arguments),
            daemon=True,
        )
        process.start()
        return process

    @property
    def are_done(self) -> bool:
        """Restart killed workers; return whether all have ended. Raises if one has failed."""
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
                raise RuntimeError(f"worker {rank} exited with code {process.exitcode}")
        return done

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()
        self._processes[rank].join()

    def run(self, kills: int = 0, seed: int = 0) -> None:
        """Return when all have ended; kill one at random, `kills` times, some steps apart."""
        chance = random.Random(seed)
        kill_at = self._plan_kill(chance, kills)
        end = time.monotonic() + DEADLINE_S
        try:
            while not self.are_done:
                if time.monotonic() > end:
                    raise TimeoutError(f"workers have not ended, after restarts {self.restarts}")
                if self._pace.steps >= kill_at:
                    time.sleep(chance.random() * STEP_S)  # anywhere within a step
                    self.kill(chance.randrange(len(self._processes)))
                    kills -= 1
                    kill_at = self._plan_kill(chance, kills)
                time.sleep(STEP_S)
        finally:
            self.close()

    def _plan_kill(self, chance: random.Random, kills: int) -> int:
        """Returns the step of the next kill, beyond which workers do not get far."""
        if not kills:
            self._pace.hold_after(UNLIMITED)
            return UNLIMITED
        kill_at = self._pace.steps + chance.randrange(STEPS_BETWEEN_KILLS)
        self._pace.hold_after(kill_at + STEPS_AHEAD)
        return kill_at

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _run(
    pace_of_all: Pace,
    variables: dict[str, str],
    work: Callable[..., None],
    rank: int,
    *arguments: Any,
) -> None:
    global _pace_here
    _pace_here = (pace_of_all, rank)
    os.environ.update(variables)
    work(rank, *arguments)
