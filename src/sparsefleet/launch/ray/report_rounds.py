"""Pair the reports of all workers by the round in which they agreed on them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from sparsefleet.launch.ray.train_internals import (
    ReplicaGroupCallback,
    ReportCallbackHandler,
    WorkerGroupCallback,
)

__all__ = ["PairedReports", "ReportRound", "report_queues"]

ReportRound = tuple[int, int]
"""Identifies a report that all workers make together: how often worker 0 was started, and the
number of its attempt. Later reports have larger values.
"""


class PairedReports(WorkerGroupCallback, ReplicaGroupCallback):  # type: ignore[misc]
    """Makes Ray Train's controller pair reports by their round instead of by their order.

    When Ray Train replaces a worker, it forgets the reports collected so far. A worker that was
    still uploading its checkpoint delivers its report of that round later. The new worker does not
    make that report again, so pairing by order would combine different rounds from then on.
    """

    def __init__(self) -> None:
        self._handler: Any = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Take over the queues of all workers, which the controller has just created."""
        self._handler = next(
            each for each in worker_group._callbacks if isinstance(each, ReportCallbackHandler)
        )
        self._replace_queues()

    def after_replica_group_start(self, replica_group: Any) -> None:
        """Take over the queues again: the controller creates new ones for each new worker."""
        del replica_group
        self._replace_queues()

    def _replace_queues(self) -> None:
        self._handler._training_report_queues = report_queues(
            len(self._handler._training_report_queues)
        )


def report_queues(workers: int) -> Sequence[deque[Any]]:
    """Return a report queue for each worker; reports that can never be completed are dropped.

    A report has an attribute `round`. If the first report in a queue is of a later round, its
    worker will make no report of an earlier round.
    """
    queues: list[deque[Any]] = []
    queues.extend(_Queue(queues) for _ in range(workers))
    return queues


class _Queue(deque[Any]):
    def __init__(self, every: Sequence[deque[Any]]) -> None:
        super().__init__()
        self._every = every

    def append(self, report: Any) -> None:
        super().append(report)
        while len({queue[0].round for queue in self._every if queue}) > 1:
            latest = max(queue[0].round for queue in self._every if queue)
            for worker, queue in enumerate(self._every):
                while queue and queue[0].round < latest:
                    queue.popleft()
                    print(
                        f"sparsefleet: a report of worker {worker} is dropped, since another "
                        "worker was lost before Ray Train had collected its own",
                        file=sys.stderr,
                        flush=True,
                    )
