"""Values in files of `fluid.io.save_persistables` on their way to the servers."""

from __future__ import annotations

import time

from sparsefleet.errors import CheckpointError, DeadlineError, NotFoundError
from sparsefleet.store import Store

__all__ = ["wait_until_loaded"]

_LOOK_S = 0.1


def loading_note(name: str) -> str:
    """The note by which the first server tells that it loads the values of a training."""
    return f"fluid/{name}/loading"


def wait_until_loaded(store: Store, name: str, wait_s: float) -> int | None:
    """The step to go on at, once a server that loads files has done so; None if none does."""
    note = loading_note(name)
    end = time.monotonic() + wait_s
    while True:
        try:
            told = store.get_note(note).decode()
        except NotFoundError:
            return None
        state, _, rest = told.partition(" ")
        if state == "loaded":
            return int(rest)
        if state == "failed":
            raise CheckpointError(f"in server 0: {rest}")
        if time.monotonic() > end:
            raise DeadlineError(f"server 0 did not load {rest} within {wait_s:g} s")
        time.sleep(_LOOK_S)
