"""Work lists of the job, kept by its first server: files that go to whichever worker is free.

Commands, with heads as in `command_body`. The worker is the client that asks.

    work.begin    list, epoch, num_workers, files          the worker begins an epoch
    work.take     list, epoch, keep_going  ->  path, done  the next file; path null if there is none
    work.report   list, epoch, marks                       records that were handed to training
    work.finish   list, epoch                              all that was taken is read
    work.release  list, epoch                              others may have what is left

A file is [path, [[begin, end], ...]]: records read before. A mark is [path, begin, end, total].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet import _core
from sparsefleet.errors import ProtocolError, SparseFleetError
from sparsefleet.server.command_body import pack_body, unpack_body
from sparsefleet.server.command_loop import Handler

if TYPE_CHECKING:
    from sparsefleet.data.work_list import WorkLists

__all__ = ["work_list_handlers"]

_Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


def work_list_handlers(has_client: Callable[[str], bool]) -> dict[str, Handler]:
    """Handlers by the name of their command; `has_client` tells who is lost."""
    answers = _Answers(has_client)
    calls = (answers.begin, answers.take, answers.report, answers.finish, answers.release)
    return {f"work.{call.__name__}": _handler(call) for call in calls}


class _Answers:
    """What the commands do. Readers' code is loaded at the first one: few servers need it."""

    def __init__(self, has_client: Callable[[str], bool]) -> None:
        self._has_client = has_client
        self._lock = threading.Lock()
        self._made: WorkLists | None = None

    @property
    def _lists(self) -> WorkLists:
        from sparsefleet.data.work_list import WorkLists

        with self._lock:
            self._made = self._made or WorkLists(self._has_client)
            return self._made

    def begin(self, worker: str, head: dict[str, Any]) -> dict[str, Any]:
        from sparsefleet.data.progress import FileToRead

        files = [FileToRead(str(path), _spans(done)) for path, done in head["files"]]
        self._lists.begin(*_place(worker, head), int(head["num_workers"]), files)
        return {}

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


def _handler(answer: _Answer) -> Handler:
    def handle(command: _core.Command) -> None:
        head, _ = unpack_body(command.body)
        try:
            found = answer(command.client, head)
        except SparseFleetError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"'{command.name}' is malformed: {error!r}") from error
        command.reply(pack_body(found))

    return handle


def _place(worker: str, head: dict[str, Any]) -> tuple[str, int, str]:
    return str(head["list"]), int(head["epoch"]), worker


def _spans(pairs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(begin), int(end)) for begin, end in pairs)
