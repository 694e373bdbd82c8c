"""What a program is within a job, and how its operators reach that."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from sparsefleet.fluid.framework import Program
    from sparsefleet.fluid.scope import Scope

__all__ = ["ProgramRole", "active_role", "active_roles"]


class ProgramRole(ABC):
    """Kept by a program as `_distributed`; an Executor asks it before and after what it runs."""

    holds_values = True
    """Whether parameters are kept elsewhere than in the scope: then it loads them, too."""

    def of_copy(self, program: Program) -> ProgramRole | None:
        """What a copy is, or a part, of a program with this role."""
        del program
        return self

    @contextmanager
    def running(self, scope: Scope) -> Iterator[None]:
        """A run of the program in this thread: its operators find this object."""
        self.get_ready(scope)
        _active.roles.append(self)
        try:
            yield
        finally:
            _active.roles.pop()

    @abstractmethod
    def get_ready(self, scope: Scope) -> None:
        """Before a run: what it needs is there, and in the scope."""

    def begin_pass(self, program: Program, threads: int) -> bool:
        """So many threads are about to run the program; whether each is to `leave` in the end."""
        del program, threads
        return False

    def leave(self) -> None:  # noqa: B027  (only those who train wait for each other)
        """The calling thread has no more data in this pass."""

    def end_data(self, scope: Scope) -> None:  # noqa: B027
        """A loader of the program has no more data for now."""

    def fail(self, error: BaseException) -> None:  # noqa: B027
        """A thread failed: others must not wait for it."""

    def close(self) -> None:  # noqa: B027
        """The Executor was closed: the other processes of the job are told."""

    # -- what operators do ----------------------------------------------------------------------

    def hand_over(self, parameters: Sequence[str], gradients: Sequence[Any]) -> None:
        """The gradients of a step, to whoever updates the parameters."""
        del parameters, gradients
        raise ConfigError(f"{self} has no gradients to send")

    def fetch(self) -> None:
        """Brings the parameters of the servers into the scope."""
        raise ConfigError(f"{self} has no parameters to receive")

    def serve(self) -> None:
        """Serves until the job ends."""
        raise ConfigError(f"{self} is no server")

    # -- files ----------------------------------------------------------------------------------

    def before_saving(self, scope: Scope) -> None:  # noqa: B027
        """All that is to be saved gets into the scope, as it is now."""

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """Values saved by `fluid.io.save_persistables` become those of this job."""
        del folder, filename
        raise ConfigError(f"{self} has its values in the scope")


class _ActiveRoles(threading.local):
    """The roles of the programs that this thread runs, the innermost last."""

    def __init__(self) -> None:
        self.roles: list[ProgramRole] = []


_active = _ActiveRoles()


def active_role(what: str) -> ProgramRole:
    """Of the program that this thread runs; `what` asks for it."""
    if not _active.roles:
        raise ConfigError(
            f"operator '{what}' belongs to a program of a job, but this program is of none: run "
            "what fleet.main_program or DistributeTranspiler gave"
        )
    return _active.roles[-1]


def active_roles() -> list[ProgramRole]:
    """Of the programs that this thread runs, the innermost last."""
    return list(_active.roles)
