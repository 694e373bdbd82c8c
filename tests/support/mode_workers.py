"""A complete training in the test process: real servers, and workers as threads with their own
stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from tests.support.servers import NativeServers

from sparsefleet.modes import ModeConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import make_mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.optim import SGD, Optimizer
from sparsefleet.store import Constant, DenseSpec, TableSpec

ROWS = "rows"
NET = "net"
KEY = np.array([7], np.uint64)
ENDED_WITHIN_S = 60.0


def gradients(
    dense: float | None = None, rows: Mapping[int, float] | None = None, *, width: int = 1
) -> StepGradients:
    """Return a dense gradient filled with a value, and one of width 1 for each key."""
    made = StepGradients()
    if dense is not None:
        made.dense[NET] = np.full(width, dense, np.float32)
    if rows:
        keys = np.array(list(rows), np.uint64)
        made.sparse[ROWS] = (keys, np.array(list(rows.values()), np.float32).reshape(-1, 1))
    return made


class RecordedRates:
    """A schedule that halves the rate each step and records its calls."""

    def __init__(self, first: float = 0.1) -> None:
        self.first = first
        self.asked: list[int] = []

    def rates_at(self, step: int) -> dict[str, float]:
        self.asked.append(step)
        return dict.fromkeys((ROWS, NET), self.first * 0.5**step)


class ModeWorkers:
    """``with ModeWorkers("sync", workers=2) as job: job.run(script)``; lr 0.1, all zeros."""

    def __init__(
        self,
        mode: str | ModeConfig,
        *,
        workers: int = 1,
        servers: int = 1,
        optimizer: Optimizer | None = None,
        width: int = 1,
        max_frame_bytes: int = 64 << 20,
        **setting: Any,
    ) -> None:
        optimizer = optimizer or SGD(lr=0.1)
        self.servers = NativeServers(servers, transport="plain", max_frame_bytes=max_frame_bytes)
        self.spec = TableSpec(name=ROWS, dim=1, optimizer=optimizer, initializer=Constant(0.0))
        self.threads = setting.get("threads", 1)
        self.stores = [
            self.servers.connect(
                name=f"worker-{index}", timeout_s=20.0, max_frame_bytes=max_frame_bytes
            )
            for index in range(workers)
        ]
        for store in self.stores:
            store.define(self.spec)
            store.define(DenseSpec(name=NET, size=width, optimizer=optimizer))
        self.live = [np.zeros(width, np.float32) for _ in self.stores]
        self.modes = [
            make_mode(
                mode,
                ModeSetting(
                    **{
                        "store": store,
                        "tables": {ROWS: self.spec},
                        "dense": {NET: self.live[index]},
                        "dense_optimizers": {NET: optimizer},
                        "worker_index": index,
                        "worker_num": workers,
                        "wait_s": 20.0,
                        **setting,
                    }
                ),
            )
            for index, store in enumerate(self.stores)
        ]
        for made in self.modes:
            made.start()

    def run(self, script: Callable[[Mode, int, int], None]) -> None:
        """Call script(mode, worker, thread) on a thread for each; raise the first error."""
        errors: list[BaseException] = []

        def play(worker: int, thread: int) -> None:
            try:
                script(self.modes[worker], worker, thread)
            except BaseException as error:
                errors.append(error)
                self.modes[worker].fail(error)

        players = [
            threading.Thread(target=play, args=(worker, thread), daemon=True)
            for worker in range(len(self.modes))
            for thread in range(self.threads)
        ]
        for player in players:
            player.start()
        for player in players:
            player.join(ENDED_WITHIN_S)
            assert not player.is_alive(), "a thread of the training hangs"
        if errors:
            raise errors[0]

    def each(self, call: Callable[[Mode], None]) -> None:
        """Call it for all workers at the same time."""
        self.run(lambda mode, _worker, thread: call(mode) if thread == 0 else None)

    def net(self) -> float:
        """Return the first element of the dense table on the servers."""
        return float(self.stores[0].pull_dense(NET)[0])

    def row(self, key: int = 7) -> float:
        return float(self.stores[0].pull(ROWS, np.array([key], np.uint64), train=False)[0, 0])

    def close(self) -> None:
        for made in self.modes:
            made.fail(RuntimeError("the test is over"))
            made.finish()
        for store in self.stores:
            store.close()
        self.servers.stop()

    def __enter__(self) -> ModeWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
