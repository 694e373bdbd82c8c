"""A Fluid script that is killed and started again, run as a job by test_resumed_program.py.

program_resume_script.py DIRECTORY [stop]: trains three passes in sync and writes the result by
fleet.save_persistables to DIRECTORY/end. It has no line about checkpoints: the environment asks for
them. With `stop`, worker 0 stops at a batch of the second pass, once there is a checkpoint, leaves
its pid in DIRECTORY/stopped, and waits to be killed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparsefleet import fluid
from sparsefleet.checkpoint import latest
from sparsefleet.fluid.incubate.fleet.base import role_maker
from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet

directory, stops = Path(sys.argv[1]), "stop" in sys.argv[2:]
L = fluid.layers


class Feeds:
    """A Dataset in memory; a pass that is to be stopped ends in a wait."""

    thread_num = 1
    filelist = ("memory",)
    passes = 0

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.passes += 1
        rng = np.random.default_rng(self._rank)
        for number in range(9 + 4 * self._rank):
            if stops and self._rank == 0 and self.passes == 2 and number == 6:
                self._wait_to_be_killed()
            ids = rng.integers(0, 50, (8, 1))
            yield {"ids": ids, "y": (ids % 3).astype(np.float32)}

    def _wait_to_be_killed(self) -> None:
        while latest(str(directory / "saves" / "program-1")) is None:
            signal.sigtimedwait([], 0.05)
        (directory / "pid").write_text(str(os.getpid()))
        (directory / "pid").rename(directory / "stopped")
        signal.pause()


fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 5
ids, y = L.data("ids", [1], dtype="int64"), L.data("y", [1])
rows = L.embedding(ids, [50, 4], is_sparse=True)
hidden = L.dropout(L.fc(rows, 6, act="tanh"), 0.2)
loss = L.mean(L.square_error_cost(L.fc(hidden, 1), y))
rate = L.exponential_decay(0.05, decay_steps=5, decay_rate=0.9)

fleet.init(role_maker.PaddleCloudRoleMaker())
fleet.distributed_optimizer(fluid.optimizer.Adam(rate)).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    feeds = Feeds(fleet.worker_index())
    for _ in range(3):
        exe.train_from_dataset(fleet.main_program, feeds)
    if fleet.is_first_worker():
        fleet.save_persistables(exe, str(directory / "end"))
    fleet.stop_worker()
