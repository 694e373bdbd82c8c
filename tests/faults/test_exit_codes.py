"""The exit code of a process shows whether it failed to deliver updates at exit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.servers import JOB_KEY, NativeServers

AT_EXIT = """
import atexit
from sparsefleet.fluid.distributed.program_role import counted_at_exit

def close():
    with counted_at_exit("the last push"):
        raise OSError("no route")

atexit.register(lambda: print("the others still run"))
atexit.register(close)
print("trained")
"""

WORKER = """
import sys
import numpy as np
from sparsefleet import fluid
from sparsefleet.fluid.fleet import Role, StrategyFactory, UserDefinedRoleMaker
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet

fleet = ProgramFleet()
fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, sys.argv[1].split(",")))
loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [2]), 1))
fleet.distributed_optimizer(
    fluid.optimizer.SGD(0.1), StrategyFactory.create_async_strategy()
).minimize(loss)
fleet.init_worker()
executor = fluid.Executor()
executor.run(fleet.startup_program)
executor.run(fleet.main_program, {"x": np.ones((4, 2), np.float32)}, [loss])
print("trained", flush=True)
sys.stdin.readline()
"""


def test_work_that_fails_at_exit_sets_the_code() -> None:
    found = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stdout.split("\n")[:2] == ["trained", "the others still run"]
    assert "OSError: no route" in found.stderr
    assert "the last push failed at exit; exiting with code 1" in found.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_for_messages_does_not_hide_the_failure() -> None:
    for streams in ("2", "1", "12"):
        ends = "".join(f" {number}>/dev/full" for number in streams)
        found = subprocess.run(
            ["sh", "-c", f'exec "$0" -c "$1"{ends}', sys.executable, AT_EXIT], capture_output=True
        )
        assert found.returncode == 1, streams


@pytest.mark.job
def test_a_worker_whose_servers_are_gone_at_exit_does_not_end_with_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(1) as servers:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, ",".join(servers.endpoints)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        lines = iter(worker.stdout.readline, "")
        assert any(line.strip() == "trained" for line in lines)
    # The servers have ended; the worker leaves without stop_worker().
    _, errors = worker.communicate("\n", timeout=120)
    assert worker.returncode == 1, errors
    assert "failed at exit; exiting with code 1" in errors
