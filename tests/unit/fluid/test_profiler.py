"""Profiles of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers


def test_a_profile_is_a_table_and_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = L.fc(fluid.data("x", [None, 2]), 3, act="relu")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    path = tmp_path / "traces" / "profile"
    with fluid.profiler.profiler("CPU", "total", str(path)):
        fluid.profiler.start_profiler("All")  # already running: nothing happens
        fluid.profiler.reset_profiler()
        exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[out])
    table = capsys.readouterr().out
    assert "aten::addmm" in table
    assert "fluid.relu" in table  # operators of the program by their names
    assert "fluid.uniform_random" not in table  # of before
    assert json.loads(path.read_text())["traceEvents"]


def test_threads_of_replicas_are_in_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = L.relu(fluid.data("x", [None, 2]))
    exe = fluid.Executor(fluid.CPUPlace())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    feed = {"x": np.ones((2, 2), "float32")}
    exe.run(compiled, feed, [out])
    fluid.profiler.start_profiler("CPU")
    exe.run(compiled, feed, [out])
    fluid.profiler.stop_profiler("calls", str(tmp_path / "profile"))
    assert "fluid.relu" in capsys.readouterr().out


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'CPU', 'GPU' or 'All', got 'TPU'"):
        fluid.profiler.start_profiler("TPU")
    with pytest.raises(ValueError, match="tracer_option"):
        fluid.profiler.start_profiler("CPU", "All")
    with pytest.raises(ValueError, match="sorted_key"):
        fluid.profiler.stop_profiler("size")
    fluid.profiler.stop_profiler()  # none is under way
    fluid.profiler.reset_profiler()
