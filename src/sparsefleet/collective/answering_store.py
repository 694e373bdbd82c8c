"""A store of torch.distributed whose every call ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store  # typed there only

__all__ = ["AnsweringStore"]

Answer = TypeVar("Answer")
_SECOND_LOOK_S = 1.0
_Call = tuple[Callable[[], Any], futures.Future[Any]]


class AnsweringStore:
    """Calls of a store, each answered within `answer_s` or not at all.

    torch's own wait for ever if the network to the store's keeper went without a word. A call
    without an answer raises DistNetworkError, and so does each one after it, at once: the first
    still holds the connection. Thread-safe.

    >>> store = AnsweringStore(dist.HashStore())
    >>> store.set("rank", "3")
    >>> store.get("rank"), store.check(["host"])
    (b'3', False)
    """

    def __init__(self, store: Store, *, answer_s: float = 10.0) -> None:
        self.plain = store
        """The store itself, for what takes a store."""
        self._answer_s = answer_s
        self._is_silent = False
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # A daemon: it may wait for an answer when the process ends.
        threading.Thread(target=self._run, daemon=True, name="collective-store").start()

    def set(self, key: str, value: str | bytes) -> None:
        """Puts a value under the key."""
        self._ask(lambda: self.plain.set(key, value))  # type: ignore[arg-type]  # takes bytes, too

    def get(self, key: str) -> bytes:
        """The value under a key that is there."""
        return self._ask(lambda: self.plain.get(key))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(lambda: self.plain.check(list(keys)))

    def delete_key(self, key: str) -> bool:
        """Whether the key was there."""
        return self._ask(lambda: self.plain.delete_key(key))

    def close(self) -> None:
        """Takes no more calls."""
        self._is_silent = True
        self._calls.put(None)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        answer: futures.Future[Answer] = futures.Future()
        if not self._is_silent:
            self._calls.put((call, answer))
            # Looks twice: what held all threads up may have kept an answer from being seen.
            for timeout_s in (self._answer_s, _SECOND_LOOK_S):
                if futures.wait([answer], timeout_s).done:
                    return answer.result()
            self._is_silent = True
        raise dist.DistNetworkError(
            f"the store in which ranks meet gave no answer within {self._answer_s:g} s: its "
            "keeper, or the network to it, is gone"
        )

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            call, answer = asked
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
