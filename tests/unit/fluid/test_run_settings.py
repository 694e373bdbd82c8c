"""What a loop of runs can omit: fetches, and freeing memory."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor import data_parallel

L = fluid.layers


def test_values_in_between_are_those_fetched_last(monkeypatch: pytest.MonkeyPatch) -> None:
    x = fluid.data("x", [1])
    kept = L.create_global_var([1], 0.0, "float32", persistable=True, name="kept")
    L.assign(kept + x, kept)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    runs = fluid.PeriodicFetch(exe, [kept], fetch_frequency=3)
    asked = []
    run = exe.run

    def counted(program: object, feed: object, fetch_list: list[object]) -> object:
        asked.append(len(fetch_list))
        return run(program, feed, fetch_list)

    monkeypatch.setattr(exe, "run", counted)
    found = []
    for _ in range(5):
        (value,) = runs.run(feed={"x": np.ones(1, "float32")})
        found.append((value.item(), runs.is_fresh))
    assert asked == [1, 0, 0, 1, 0]
    assert found == [(1, True), (1, False), (1, False), (4, True), (4, False)]
    with pytest.raises(ConfigError, match="fetch_frequency must be an int >= 1, got 0"):
        fluid.PeriodicFetch(exe, [kept], 0)


@pytest.mark.parametrize(("every", "wanted"), [(1, 6), (2, 3), (4, 1), (100, 0)])
def test_freed_memory_goes_back_every_so_many_runs(
    every: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = []
    give_back = data_parallel.give_back_freed_memory
    monkeypatch.setattr(
        data_parallel, "give_back_freed_memory", lambda: given_back.append(give_back())
    )
    loss = L.mean(fluid.data("x", [None, 2]))
    strategy = fluid.ExecutionStrategy()
    strategy.num_iteration_per_drop_scope = every
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, exec_strategy=strategy, places=fluid.cpu_places(1)
    )
    exe = fluid.Executor(fluid.CPUPlace())
    for _ in range(6):
        exe.run(program, {"x": np.ones((2, 2), "float32")}, [loss])
    assert len(given_back) == wanted
