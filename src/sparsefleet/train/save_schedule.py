"""When a worker stops for a save or an update, agreed on with the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping
from typing import Literal

from sparsefleet.errors import DeadlineError, NotFoundError, SparseFleetError
from sparsefleet.fleet.board import Board
from sparsefleet.train.rhythm import Rhythm

__all__ = ["SaveSchedule"]

_LOOK_EVERY_STEPS = 8  # where workers step together, a request is looked for this often
_LISTEN_S = 1.0  # a wait on the servers cannot be called off: it is made in pieces


class SaveSchedule:
    """Says for each step whether a stop is wanted after it. Thread-safe.

    Whoever finds something due leaves a request for the others, numbered, on their board. Where
    workers go their own ways, a thread listens for it, and each stops when it hears of it. Where
    they take each step together, all must stop after the same one: by count, which all have in
    common; or by the clock, and then the request names a step that none can have passed without
    having looked.

    rhythms: what falls due, by name.
    name: of this training on the board.
    """

    def __init__(
        self,
        rhythms: Mapping[str, Rhythm],
        board: Board,
        *,
        name: str,
        is_alone: bool,
        steps_together: Literal["nobody", "threads", "workers"],
    ) -> None:
        self._rhythms = rhythms
        self._board = board
        self._name = name
        self._is_alone = is_alone
        self._agrees_on_step = steps_together == "workers" and not is_alone
        self._number = 0
        self._changed = threading.Condition()
        self._heard = False
        self._closed = False
        self._before_pass = 0
        self._found: set[str] = set()
        self._listener: threading.Thread | None = None
        if not is_alone and not self._agrees_on_step:
            self._listener = threading.Thread(
                target=self._listen, name="sparsefleet-save-requests", daemon=True
            )
            self._listener.start()

    def is_due(self, step: int) -> bool:
        """As `SavePoints`."""
        if self._agrees_on_step:
            return self._is_agreed(step)
        for rhythm in self._rhythms.values():
            rhythm.steps += step > 0
        if self._heard:
            return True
        found = {n for n, r in self._rhythms.items() if r.is_time() or r.is_count(r.steps)}
        if not found:
            return False
        self._found |= found
        if not self._is_alone:
            self._request(step)
        self._heard = True
        return True

    @property
    def found(self) -> Collection[str]:
        """What this worker has found due since the last stop."""
        return self._found

    def begin_pass(self, steps: int) -> None:
        """A pass begins; where workers step together, all have taken `steps` so far."""
        self._before_pass = steps

    def end_stop(self, steps: int, *, done: Collection[str]) -> None:
        """All workers have met, after `steps` steps where they take them together.

        done: what was done; the rest is due as if they had not met.
        """
        if not self._is_alone:
            with contextlib.suppress(NotFoundError):
                self._board.delete_note(self._request_name)
        with self._changed:
            for name in done:
                self._rhythms[name].restart(steps)
            self._found = set()
            self._number += 1
            self._heard = False
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the listening thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.join(2 * _LISTEN_S)

    def _is_agreed(self, step: int) -> bool:
        taken = self._before_pass + step
        counted = {n for n, r in self._rhythms.items() if r.is_count(taken - r.done_at)}
        self._found |= counted
        if counted:
            return True
        has_clock = any(rhythm.has_clock for rhythm in self._rhythms.values())
        if not has_clock or step % _LOOK_EVERY_STEPS:
            return False
        try:
            return int(self._board.get_note(self._request_name)) == step
        except NotFoundError:
            timed = {name for name, rhythm in self._rhythms.items() if rhythm.is_time()}
            self._found |= timed
            if timed:
                self._request(step + _LOOK_EVERY_STEPS)
            return False

    @property
    def _request_name(self) -> str:
        return f"{self._name}/save/{self._number}"

    def _request(self, step: int) -> None:
        self._board.put_note(self._request_name, str(step).encode())

    def _listen(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not self._heard)
                if self._closed:
                    return
                number, name = self._number, self._request_name
            try:
                self._board.get_note(name, wait=True, timeout_s=_LISTEN_S)
            except DeadlineError:
                continue
            except SparseFleetError:
                return  # training finds out what is wrong with the board, and says so
            with self._changed:
                if number == self._number:
                    self._heard = True
