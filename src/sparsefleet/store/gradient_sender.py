"""Gradients that are merged and pushed in the background by a native thread.

In shapes, N is the number of keys, D the row width, and S the number of elements of a dense table.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsefleet import _core
from sparsefleet.store.arrays import Floats
from sparsefleet.store.connection import RoundMember, lower_member
from sparsefleet.store.rows import DataMark, RejectedRows


@dataclass(frozen=True, kw_only=True, slots=True)
class SenderConfig:
    """How a :class:`GradientSender` merges gradients, waits, and fetches dense values."""

    max_merge: int = 1
    """Maximum number of mini-batches in one push."""

    queue_size: int = 1
    """Maximum number of mini-batches waiting to be sent; when the queue is full, ``put`` blocks."""

    linger_s: float = 0.0
    """How long the sender waits for another mini-batch while it has fewer than ``max_merge``. The
    sender does not wait while a call waits for the queue to become empty."""

    max_open: int | None = None
    """``put`` blocks until at most this many mini-batches are not yet applied. None means no
    bound.
    """

    summed: frozenset[str] = frozenset()
    """Tables whose gradients are summed; all others are averaged."""

    dense: Mapping[str, Floats] = field(default_factory=dict)
    """The array float32[S] into which each dense table's values are fetched, in place."""

    refresh_after: int = 0
    """Dense values are fetched once more than this many mini-batches were pushed since the last
    fetch.
    """

    on_pushed: Callable[[int], None] | None = None
    """Called on the sender's thread after each push, with the number of mini-batches in the push.
    An exception stops the sender. The function must not refer to the sender."""

    wait_s: float = 600.0
    """Maximum time that a call waits, and that the sender waits for slower workers."""


class GradientSender:
    """Pushes gradients from a bounded queue in the background. Created by ``Store.sender``.

    Thread-safe. A native thread merges and pushes without the interpreter. After the first error
    nothing more is pushed, and every call raises that error.

    >>> import numpy as np
    >>> from sparsefleet.optim import SGD
    >>> from sparsefleet.store import Constant, LocalStore, TableSpec
    >>> store = LocalStore()
    >>> store.define(TableSpec(name="t", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0)))
    >>> sender = store.sender(SenderConfig(summed=frozenset(["t"])))
    >>> _ = sender.put({"t": (np.array([5]), np.ones((1, 1), np.float32))}, {})
    >>> sender.flush()
    >>> store.pull("t", np.array([5])).tolist()
    [[-1.0]]
    >>> sender.end()
    """

    def __init__(
        self,
        store: _core.Store,
        config: SenderConfig,
        *,
        timeout_s: float,
        sections: Callable[[Mapping[str, Any], Mapping[str, Any]], list[Any]],
        rejected: RejectedRows,
    ) -> None:
        self._sections = sections
        self._rejected = rejected
        self._native = _core.GradientSender(
            store,
            max_merge=config.max_merge,
            queue_size=config.queue_size,
            linger_s=config.linger_s,
            max_open=config.max_open,
            summed=sorted(config.summed),
            dense=list(config.dense.items()),
            refresh_after=config.refresh_after,
            on_pushed=None if config.on_pushed is None else _hook(self, config.on_pushed),
            wait_s=config.wait_s,
            timeout_s=timeout_s,
        )

    def put(
        self,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any],
        *,
        data: Sequence[DataMark] = (),
        alone: bool = False,
    ) -> tuple[float, int]:
        """Queue the gradients of one mini-batch; no key may repeat.

        The arrays are read later and must not change. Returns the seconds the call was blocked,
        and the number of earlier mini-batches not yet reflected in the dense values.

        data: the source of the gradients; see ``Store.push_many``.
        alone: do not merge these gradients with others, since some servers have already applied
            that data.
        """
        waited_s, staleness = self._native.put(self._sections(sparse, dense), list(data), alone)
        self._report_rejected()
        return waited_s, staleness

    def wait_empty(self) -> None:
        """Wait until all gradients queued before this call are applied."""
        self._native.wait_empty()
        self._report_rejected()

    def flush(self) -> None:
        """Wait as `wait_empty` does, then fetch the dense values."""
        self._native.flush()
        self._report_rejected()

    def bound_staleness(self, member: RoundMember, ahead: int, applied: int = 0) -> None:
        """Keep this worker at most ``ahead`` applied mini-batches ahead of the slowest worker.

        Each call restarts the count at ``applied``. Call it while the queue is empty.
        """
        self._native.bound_staleness(lower_member(member), ahead, applied)

    def fail(self, error: BaseException) -> None:
        """Make all calls, pending or later, raise ``error``; nothing more is sent.

        Does nothing if the sender has already failed.
        """
        self._native.fail(error)

    def end(self) -> None:
        """Send the queued gradients, unless an error occurred, and stop the thread. Idempotent."""
        self._native.end()

    @property
    def stats(self) -> _core.SenderStats:
        """Return the sender's counters since it was created."""
        return self._native.stats

    def _report_rejected(self) -> None:
        for tables, count in self._native.take_rejected().items():
            self._rejected.add(tables, count)


def _hook(sender: GradientSender, on_pushed: Callable[[int], None]) -> Callable[[int], bool]:
    # The native object owns the hook, so a strong reference back would keep both alive forever.
    weak_sender = weakref.ref(sender)

    def hook(count: int) -> bool:
        try:
            on_pushed(count)
        except BaseException as error:  # raised again in the training threads
            if (found := weak_sender()) is not None:
                found.fail(error)
            return False
        return True

    return hook
