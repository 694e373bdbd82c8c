"""The role of a program in a job: how operators find it, and the exit code if it fails at exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.step import Step
    from sparsefleet.fluid.executor.program_workload import ProgramInputs, ProgramWorkload
    from sparsefleet.fluid.framework import Program
    from sparsefleet.fluid.framework.scope import Scope
    from sparsefleet.fluid.lowering.lowered import RunResult
    from sparsefleet.store.table_folders import TableFolders

__all__ = [
    "ActiveRun",
    "ProgramRole",
    "active_role",
    "active_roles",
    "active_run",
    "counted_at_exit",
]


class ProgramRole(ABC):
    """A program's role, stored as `_distributed`. An Executor calls its methods around each run."""

    holds_values = True
    """Whether parameters are kept outside the scope. If so, the role also loads them."""

    def of_copy(self, program: Program) -> ProgramRole | None:
        """Return the role of a copy or part of the program."""
        del program
        return self

    @contextmanager
    def running(self, scope: Scope, step: Step | None = None) -> Iterator[None]:
        """Register a run in this thread, so that its operators can find this role and the step."""
        self.get_ready(scope)
        _active.runs.append(ActiveRun(self, step))
        try:
            yield
        finally:
            _active.runs.pop()

    def run(self, workload: ProgramWorkload, inputs: ProgramInputs) -> RunResult:
        """Run the program once, in the calling thread."""
        with self.running(workload.scope):
            return workload.run(inputs)

    @abstractmethod
    def get_ready(self, scope: Scope) -> None:
        """Prepare for a run by bringing the values it needs into the scope."""

    def begin_pass(self, program: Program, threads: int) -> bool:
        """Prepare for a pass with this many threads.

        Returns whether each thread must call `leave` when it has no more data.
        """
        del program, threads
        return False

    def begin_training(self, workload: ProgramWorkload, threads: int) -> BoundModel | None:
        """Return the model that the engine trains with this many threads.

        Returns None if the program keeps its values in the scope; `begin_pass` is called in that
        case.
        """
        del workload, threads
        return None

    def leave(self) -> None:  # noqa: B027  (only training roles wait for each other)
        """Report that the calling thread has no more data in this pass."""

    def end_data(self, scope: Scope) -> None:  # noqa: B027
        """Report that a loader of the program has reached the end of its data for this pass."""

    def fail(self, error: BaseException) -> None:  # noqa: B027
        """Report that a thread failed, so that other threads do not wait for it."""

    def close(self) -> None:  # noqa: B027
        """Handle a closed Executor by notifying the job's other processes."""

    # -- for operators ---------------------------------------------------------------------------

    def hand_over(
        self, step: Step | None, parameters: Sequence[str], gradients: Sequence[Any]
    ) -> None:
        """Pass the parameters' gradients to the step, which sends them when it ends."""
        del step, parameters, gradients
        raise ConfigError(f"{self} has no gradients to send")

    def fetch(self) -> None:
        """Fetch the servers' parameters into the scope."""
        raise ConfigError(f"{self} has no parameters to receive")

    def serve(self) -> None:
        """Serve until the job ends."""
        raise ConfigError(f"{self} is not a server")

    # -- files ----------------------------------------------------------------------------------

    @property
    def writes_model(self) -> bool:
        """Return whether this process writes model files.

        In a job with servers, only worker 0 does.
        """
        return True

    def before_saving(self, scope: Scope) -> None:  # noqa: B027
        """Prepare for a save: fill the scope and wait for pending updates."""

    def open_tables(
        self, folders: Mapping[str, os.PathLike[str]]
    ) -> Iterator[tuple[TableFolders, Mapping[str, NDArray[Any]]]]:
        """Start saving the tables that are outside the scope, each into its own folder.

        Also returns the values, as of the same moment, of all other variables outside the scope.
        """
        del folders
        yield from ()

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """Load values saved by `fluid.io.save_persistables` into this job."""
        del folder, filename
        raise ConfigError(f"{self} keeps its values in the scope")


class ActiveRun(NamedTuple):
    """A program that this thread is running."""

    role: ProgramRole
    step: Step | None
    """The training step of this run, if any."""


class _ActiveRuns(threading.local):
    """The programs with a role that this thread is running, innermost last."""

    def __init__(self) -> None:
        self.runs: list[ActiveRun] = []


_active = _ActiveRuns()


def active_run(what: str) -> ActiveRun:
    """Return this thread's innermost run. `what` is the operator that needs it."""
    if not _active.runs:
        raise ConfigError(
            f"operator '{what}' needs a distributed program; run fleet.main_program or "
            "the program that DistributeTranspiler returned"
        )
    return _active.runs[-1]


def active_role(what: str) -> ProgramRole:
    """Return the role of the program that this thread runs, for the operator `what`."""
    return active_run(what).role


def active_roles() -> list[ProgramRole]:
    """Return the roles of the programs that this thread is running, innermost last."""
    return [run.role for run in _active.runs]


_failed: list[str] = []


@contextmanager
def counted_at_exit(what: str) -> Iterator[None]:
    """In an exit handler, print any error from the `with` block and make the process exit with
    code 1.

    Otherwise Python prints the error and exits with 0, so a launcher would see success even though
    gradients never arrived.
    """
    try:
        yield
    except Exception:
        _failed.append(what)
        with suppress(OSError):  # the error cannot be reported, for example to a log on a full disk
            traceback.print_exc()


def _end() -> None:
    if not _failed:
        return
    with suppress(OSError):
        print(f"{', '.join(_failed)} failed at exit; exiting with code 1", file=sys.stderr)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(1)  # nothing else can set the exit code at this point


# Functions run in reverse order, so this one runs after all that are registered once training has
# begun.
atexit.register(_end)
