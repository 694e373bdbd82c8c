"""Programs in half precision, and with merged gradients, that train on servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    ProgramWorker,
    feeds_of,
    fleet_of,
    ids_and_numbers,
    make_worker,
    run_workers,
)
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import ConfigError


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(1) as started:
        yield started


def test_an_overflow_changes_nothing_on_the_servers(servers: NativeServers) -> None:
    names = ("fc_0.w_0", "embedding_0.w_0")

    def work(worker: ProgramWorker) -> list[bool]:
        changed = []
        for number in (1.0, np.inf, 1.0):
            before = [worker.value(name) for name in names]
            (feed,) = feeds_of(0, 1)
            worker.run({**feed, "y": feed["y"] * np.float32(number)})
            after = [worker.value(name) for name in names]
            changed += [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        return changed

    def mixed() -> Any:
        return fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1), None, 8.0)

    (changed,) = run_workers(servers, 1, work, mixed)
    assert changed == [True, True, False, False, True, True]


def test_merged_gradients_are_refused(servers: NativeServers) -> None:
    def merged() -> Any:
        return fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k_steps=2)

    with pytest.raises(ConfigError, match="servers update after every batch"):
        make_worker(fleet_of(servers, 0, 1), merged, layers=ids_and_numbers)
