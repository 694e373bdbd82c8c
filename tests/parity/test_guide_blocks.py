"""Every code block of the guides runs in one process, with our package in place of Paddle.

A block is a fragment: the test puts a network and data before it and checks its results. Jobs with
servers are in tests/process/test_guide_jobs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parity.guide_blocks import OURS
from tests.parity.guide_text import SOURCES, block
from tests.parity.seed_text import SEEDS, blocks

import sparsefleet.fluid as fluid

NET = """
import os
import sparsefleet.fluid as fluid
main_program, startup = fluid.default_main_program(), fluid.default_startup_program()
x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
avg_cost = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
"""

MINIMIZE = "fluid.optimizer.SGD(0.05).minimize(avg_cost)\n"

pytestmark = pytest.mark.usefixtures("fresh_programs")


def ran(*parts: str, **names: Any) -> dict[str, Any]:
    """Return the variables that the text leaves behind."""
    found: dict[str, Any] = {"__name__": "guide", **names}
    exec(compile("\n".join(parts), "guide.py", "exec"), found)
    return found


def examples(count: int) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    x = draw.standard_normal((count, 4)).astype("float32")
    return {"x": x, "y": (x @ np.array([[1.0], [-2], [0.5], [3]])).astype("float32")}


@pytest.mark.skipif(not SEEDS.exists(), reason="the documents are not at ../shared")
def test_every_block_of_the_documents_has_a_test() -> None:
    found = {(number, place) for number in range(5) for place in range(len(blocks(number)))}
    assert found == set(OURS)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("source", SOURCES)
def test_parallel_executor_trains_on_replicas(
    source: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    run_startup = "fluid.Executor(fluid.CPUPlace()).run(startup)\n"
    pe = ran(NET, MINIMIZE, run_startup, block(source, number, 0))["pe"]
    assert pe.device_count == 2
    losses = [pe.run(fetch_list=["mean_0.tmp_0"], feed=examples(32))[0] for _ in range(60)]
    assert losses[0].shape == (2,), "one loss for each replica"
    assert losses[-1].mean() < losses[0].mean() / 20


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("source", SOURCES)
def test_sparse_embedding_changes_only_the_rows_it_saw(source: str, number: int) -> None:
    text = block(source, number, 1)
    left = ran("import sparsefleet.fluid as fluid", text, dict_size=10000)
    loss = fluid.layers.mean(left["fc"])
    fluid.optimizer.SGD(1.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    table = fluid.global_scope().find_var("embedding_0.w_0").get_tensor()
    before = np.array(table)
    exe.run(feed={"ids": np.array([[3], [9999]])}, fetch_list=[loss])
    changed = np.flatnonzero((np.array(table) != before).any(axis=1))
    assert changed.tolist() == [3, 9999]


@pytest.mark.parametrize("source", SOURCES)
def test_program_trains_from_a_dataset(source: str, tmp_path: Path) -> None:
    feed = examples(256)
    lines = [
        f"4 {' '.join(map(str, x))} 1 {y[0]}" for x, y in zip(feed["x"], feed["y"], strict=True)
    ]
    (tmp_path / "part-0").write_text("\n".join(lines) + "\n")

    def complete(dataset: Any) -> None:
        block_0 = fluid.default_main_program().global_block()
        dataset.set_use_var([block_0.var("x"), block_0.var("y")])
        dataset.set_batch_size(8)
        dataset.set_filelist([str(tmp_path / "part-0")])

    made = "create_dataset()\n"  # the fragment leaves out what the dataset reads
    text = block(source, 0, 2, [(made, made + "complete(dataset)\n")])
    left = ran(NET, MINIMIZE, text, complete=complete)
    found = left["exe"].run(feed=feed, fetch_list=[left["avg_cost"]])[0]
    assert found.item() < 0.2 < 14.0 < float(np.square(feed["y"]).mean()) + 1.0


@pytest.mark.parametrize("source", SOURCES)
def test_strategies_are_tuned_in_both_ways(source: str) -> None:
    from sparsefleet.fluid import DistributeTranspilerConfig

    text = block(source, 0, 6)
    left = ran(block(source, 0, 3), text, DistributeTranspilerConfig=DistributeTranspilerConfig)
    strategy = left["strategy"]
    assert strategy.get_program_config().min_block_size == 81920
    assert strategy.get_program_config() is left["config"]
    strategy.set_program_config({"min_block_size": 90000})  # what the comment of the block shows
    assert strategy.get_program_config().min_block_size == 90000
    assert strategy.mode_name == "sync"


@pytest.mark.parametrize("source", SOURCES)
def test_first_trainer_saves_what_is_kept(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left = ran(NET, MINIMIZE, "fluid.Executor(fluid.CPUPlace()).run(startup)", block(source, 1, 0))
    names = {item.name for item in (tmp_path / "models").iterdir()}
    assert {"fc_0.w_0", "fc_0.b_0", "learning_rate_0"} <= names
    weight = fluid.global_scope().find_var("fc_0.w_0").get_tensor()
    kept = np.array(weight)
    weight.set(np.zeros_like(kept), fluid.CPUPlace())
    fluid.io.load_persistables(left["exe"], "models", left["prog"])
    np.testing.assert_array_equal(np.array(weight), kept)


@pytest.mark.parametrize("source", SOURCES)
def test_infinite_reader_feeds_pass_after_pass(source: str, tmp_path: Path) -> None:
    feed = examples(10)
    (tmp_path / "data").write_text(
        "".join(
            f"{' '.join(map(str, x))} {y[0]}\n" for x, y in zip(feed["x"], feed["y"], strict=True)
        )
    )
    repairs = [
        ("xrange", "range"),  # Python 2
        ("in (iters_per_pass)", "in range(iters_per_pass)"),
        ("exe.run()", "losses.append(exe.run(fetch_list=[avg_cost])[0].item())"),
    ]
    loader = """
data_loader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=4, iterable=False)
def process(line):
    numbers = [float(word) for word in line.split()]
    return numbers[:4], numbers[4:]
"""
    attach = """
data_loader.set_sample_generator(lambda: infinite_reader(path), batch_size=4)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(startup)
train()
"""
    losses: list[float] = []
    names = {"losses": losses, "path": tmp_path / "data", "NUM_PASSES": 3, "iters_per_pass": 20}
    ran(NET, MINIMIZE, loader, block(source, 2, 0, repairs), attach, **names)
    assert len(losses) == 60, "ten lines lasted for 240 samples"
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize("source", SOURCES)
def test_collective_strategy_trains(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6170")
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6170")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    repairs = [
        ("exe_st.num_threads", "exec_strategy.num_threads"),  # a name that is not defined
        ("             ...\n", ""),
        ("params = model.params", "params = None"),
        ("    batch_id = 0\n", "    batch_id = 0\n    exe.run(startup_prog)\n"),
        ("while True:", "while batch_id < 40:\n        batch_id += 1"),
        # the second argument of run is the feed, and [] is not a program
        ("exe.run(main_prog, fetch_list)", "exe.run(main_prog, feed, fetch_list)"),
        ("exe.run([])", "exe.run(main_prog, feed)"),
    ]
    before = """
from sparsefleet.fluid.incubate.fleet.base import role_maker
from sparsefleet.fluid.incubate.fleet.collective import DistributedStrategy, fleet
fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
main_prog, startup_prog = main_program, startup
exe = fluid.Executor(fluid.CPUPlace())
fetch_list, fetch_frequency, PASS_NUM = [avg_cost], 10, 1
def optimizer_setting(params):
    return fluid.optimizer.SGD(0.05)
"""
    left = ran(NET, before, block(source, 2, 1, repairs), feed=examples(32))
    assert left["fetched"][0].item() < 0.5
    assert left["dist_strategy"].nccl_comm_num == 1, "there is one machine only"
    assert left["exec_strategy"].num_threads == 3, "as the script says"
