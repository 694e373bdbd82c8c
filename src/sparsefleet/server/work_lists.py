"""Work lists on the first server of a job: they assign files to whichever worker is free.

Commands, with bodies as in `command_loop`. The worker is the client that sends the command; while
its session is alive, no other client of the same name may use the same list.

    work.begin    list, epoch, num_workers, files, again   start an epoch
    work.account  list, epoch                              the list is read by the engine
    work.given    list, epoch, worker  ->  epoch, ...      files that a worker has taken
    work.take     list, epoch, keep_going  ->  path, done  get the next file; null if there is none
    work.report   list, epoch, marks                       report records passed to training
    work.finish   list, epoch                              everything taken has been read
    work.release  list, epoch                              return the rest for other workers

A file is [path, [[begin, end], ...]] with the records already read; a mark is
[path, begin, end, total].
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet import _core
from sparsefleet.errors import ProtocolError, SparseFleetError
from sparsefleet.server.command_loop import (
    Answered,
    CommandStates,
    Handler,
    HasSession,
    Holders,
    pack_body,
    unpack_body,
)

if TYPE_CHECKING:
    from sparsefleet.data.sharding import WorkLists

__all__ = ["work_list_handlers"]

_Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


def work_list_handlers(
    has_session: HasSession, states: CommandStates | None = None
) -> dict[str, Handler]:
    """Return the handlers by command name. has_session: returns whether a worker is alive."""
    answers = _Answers(has_session)
    if states is not None:
        states.add("work.", answers)
    return {f"work.{name}": answers.handle for name in answers.calls}


class _Answers:
    """Implements the work list commands. Imports reader code lazily, since few servers need it."""

    def __init__(self, has_session: HasSession) -> None:
        self._holders = Holders(has_session)
        self._lock = threading.Lock()
        self._answering = threading.Lock()  # keeps effects and answers in the same order
        self._made: WorkLists | None = None
        self.calls: dict[str, _Answer] = {
            call.__name__: call
            for call in (
                self.begin,
                self.account,
                self.given,
                self.take,
                self.report,
                self.finish,
                self.release,
            )
        }

    def handle(self, command: _core.Command) -> None:
        """Answer a command."""
        head, _ = unpack_body(command.body)
        try:
            with self._answering:
                self.claim(command.client, command.session, head)
                found = self.calls[command.name.removeprefix("work.")](command.client, head)
                command.reply(pack_body(found))
        except SparseFleetError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the command '{command.name}' is malformed: {error!r}") from error

    def hold(self) -> threading.Lock:
        """Return a context manager; while it is open, no command is answered."""
        return self._answering

    def dump(self) -> bytes:
        """Return the state of all lists, with the workers that use them."""
        held = [[*thing, session] for thing, session in self._holders.dump()]
        lists = self._made.state() if self._made is not None else None
        return json.dumps({"held": held, "lists": lists}).encode()

    def load(self, state: bytes) -> None:
        """Restore the lists that `dump` returned."""
        found = json.loads(state)
        self._holders.load(((name, worker), session) for name, worker, session in found["held"])
        if found["lists"] is not None:
            self._lists.load_state(found["lists"])

    def replay(self, answered: Answered) -> None:
        """Repeat the effect of a command that was answered before a restart."""
        head, _ = unpack_body(answered.body)
        key = (str(head["list"]), answered.client)
        self._holders.load([*self._holders.dump(), (key, answered.session)])
        self.calls[answered.name.removeprefix("work.")](answered.client, head)

    @property
    def _lists(self) -> WorkLists:
        from sparsefleet.data.sharding import WorkLists

        with self._lock:
            self._made = self._made or WorkLists(self._is_present)
            return self._made

    def claim(self, worker: str, session: int, head: dict[str, Any]) -> None:
        """Raise NotOwnerError if another live session uses the list under this worker's name."""
        name = str(head["list"])
        with self._lock:
            self._holders.claim((name, worker), session, f"list '{name}': worker '{worker}'")

    def _is_present(self, name: str, worker: str) -> bool:
        with self._lock:
            return self._holders.is_present((name, worker))

    def begin(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        from sparsefleet.data.progress import FileToRead

        files = [FileToRead(str(path), _spans(done)) for path, done in head["files"]]
        again = bool(head.get("again"))
        self._lists.begin(*_place(worker, head), int(head["num_workers"]), files, again=again)
        return {}

    def account(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        name, epoch, _ = _place(worker, head)
        self._lists.keep_account(name, epoch)
        return {}

    def given(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        name, epoch, _ = _place(worker, head)
        epoch, is_finished, files = self._lists.given_to(name, epoch, str(head["worker"]))
        listed = [[file.path, file.done] for file in files]
        return {"epoch": epoch, "is_finished": is_finished, "files": listed}

    def take(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        file = self._lists.take(*_place(worker, head), keep_going=bool(head["keep_going"]))
        return {"path": None} if file is None else {"path": file.path, "done": file.done}

    def report(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        from sparsefleet.data.progress import FileMark

        self._lists.report(*_place(worker, head), [FileMark(*mark) for mark in head["marks"]])
        return {}

    def finish(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        self._lists.finish(*_place(worker, head))
        return {}

    def release(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        self._lists.release(*_place(worker, head))
        return {}


def _place(worker: str, head: dict[str, Any]) -> tuple[str, int, str]:
    return str(head["list"]), int(head["epoch"]), worker


def _spans(pairs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(begin), int(end)) for begin, end in pairs)
