"""The blocks of the guides that need servers run, as jobs of real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.parity.guide_text import SOURCES, block
from tests.process.guide_job import PlainJob, launch, run, write_clicks
from tests.support.ports import free_ports

NET = """
import os, sys
import numpy as np
import sparsefleet.fluid as fluid
learning_rate = 0.2
fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 7
ids = fluid.layers.data(name="ids", shape=[1], dtype="int64")
label = fluid.layers.data(name="label", shape=[1], dtype="int64")
rows = fluid.layers.embedding(ids, [100, 8], is_sparse=True)
predict = fluid.layers.fc(fluid.layers.fc(rows, 8, act="tanh"), 2, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(predict, label))
exe = fluid.Executor(fluid.CPUPlace())

def batches(count):
    draw = np.random.default_rng(int(os.environ.get("PADDLE_TRAINER_ID", 0)))
    for _ in range(count):
        drawn = draw.integers(0, 100, (64, 1))
        yield {"ids": drawn, "label": drawn % 2}

def fit(program, count=400):
    losses = [exe.run(program, feed=feed, fetch_list=[loss.name])[0].mean()
              for feed in batches(count)]
    print("from", losses[0], "to", np.mean(losses[-10:]), flush=True)
"""

CALLS = {
    "sync": "create_sync_strategy()",
    "half_async": "create_half_async_strategy()",
    "async": "create_async_strategy()",
    "geo": "create_geo_strategy(update_frequency=20)",
}


def fall(printed: str) -> tuple[float, float]:
    found = re.search(r"from (\S+) to (\S+)", printed)
    assert found is not None, printed
    return float(found[1]), float(found[2])


@pytest.mark.job
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("mode", "compiled"),
    [("sync", False), ("half_async", True), ("async", True), ("geo", False)],
)
def test_each_strategy_trains(source: str, mode: str, compiled: bool, tmp_path: Path) -> None:
    chosen = f"strategy = DistributedStrategyFactory.{CALLS[mode]}\n"
    # The block creates all four strategies in turn, and omits the training.
    repairs = [("# step2", f"{chosen}# step2"), ("exe.run(fleet.main_program)", "train()")]
    body = block(source, 0, 5) + "fit(compiled_program)" if compiled else "fit(fleet.main_program)"
    train = "def train():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    script = NET + block(source, 0, 3) + train + block(source, 0, 4, repairs)
    (tmp_path / "train.py").write_text(script)
    first, last = fall(launch(tmp_path, "train.py", CPU_NUM="2"))
    assert first > 0.6
    assert last < 0.4


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PlainJob]:
    made = PlainJob(tmp_path, "train.py")
    yield made
    made.close()


@pytest.mark.job
@pytest.mark.parametrize("source", SOURCES)
def test_servers_resume_from_what_the_first_trainer_saved(
    source: str, tmp_path: Path, job: PlainJob
) -> None:
    alone = NET + "fluid.optimizer.Adagrad(0.1).minimize(loss)\n"
    alone += "exe.run(fluid.default_startup_program())\nfit(fluid.default_main_program())\n"
    (tmp_path / "first.py").write_text(alone + block(source, 1, 0))
    assert fall(run(tmp_path, "first.py"))[1] < 0.4

    endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]
    repairs = [
        ("127.0.0.1:1001,127.0.0.1:1002", ",".join(endpoints)),
        ('"127.0.0.1:1002"', 'os.environ["ENDPOINT"]'),
        ("trainers = 4", "trainers = 1"),
        ('training_role == "PSERVER"\n', 'training_role = os.environ["ROLE"]\n'),  # meant: =
        (
            "exe.run(main_program)",
            "exe.run(fluid.default_startup_program()); fit(main_program, 20)",
        ),
    ]
    before = """
fluid.optimizer.Adagrad(0.1).minimize(loss)
trainer_id = 0
def train(program):
    exe.run(fluid.default_startup_program())
    fit(program, 20)
"""
    text = block(source, 1, 1, repairs)
    (tmp_path / "train.py").write_text(NET + before + text + "exe.close()\n")
    for index, endpoint in enumerate(endpoints):
        job.start(f"server-{index}", ROLE="PSERVER", ENDPOINT=endpoint)
    job.start("trainer", ROLE="TRAINER", ENDPOINT="")
    first, last = fall(job.wait("trainer"))
    assert first < 0.45, "a warm start"
    assert last <= first + 0.05


QUICK_START_FILES = {
    "args.py": """
import argparse

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--is_local", type=int, default=0)
    return parser.parse_args()
""",
    "criteo_reader.py": """
import sys
import zlib
import sparsefleet.fluid.incubate.data_generator as dg

class Clicks(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def example():
            cells = line.rstrip("\\n").split("\\t")
            dense = [float(cell or 0) / 50 for cell in cells[1:14]]
            size = int(sys.argv[1])
            ids = [[zlib.crc32(f"{i}{cell}".encode()) % size] for i, cell in enumerate(cells[14:])]
            names = ["dense_input", *(f"C{i}" for i in range(1, 27)), "label"]
            yield list(zip(names, [dense, *ids, [int(cells[0])]], strict=True))
        return example

Clicks().run_from_stdin()
""",
    "network_conf.py": """
import math
import sparsefleet.fluid as fluid

def ctr_dnn_model_dataset(dense, sparse, label, width, size):
    rows = [
        fluid.layers.sequence_pool(
            fluid.layers.embedding(
                ids, [size, width], is_sparse=True,
                param_attr=fluid.ParamAttr(
                    "SparseFeatFactors", initializer=fluid.initializer.Uniform()),
            ), "sum")
        for ids in sparse
    ]
    found = fluid.layers.concat(rows + [dense], axis=1)
    for size in (400, 400, 400):
        std = 1 / math.sqrt(found.shape[1])
        found = fluid.layers.fc(found, size, act="relu", param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.Normal(scale=std)))
    predict = fluid.layers.fc(found, 2, act="softmax")
    cost = fluid.layers.reduce_sum(fluid.layers.cross_entropy(input=predict, label=label))
    auc, batch_auc, _ = fluid.layers.auc(predict, label, num_thresholds=2**12, slide_steps=20)
    return cost, auc, batch_auc
""",
}


def quick_start(source: str, directory: Path) -> None:
    """Write the script of the guide, the modules it imports, and some data."""
    repairs = [
        ("epoch=20", "epoch=3"),
        ("def main_function(is_local):\n", "optimizer = None\ndef main_function(is_local):\n"),
    ]
    if source == "seed":  # lines of one function with inconsistent indentation
        slips = ("  # common code", "  dense_input =", "    name=", "  sparse_input_ids =")
        repairs += [(f"\n{slip}", f"\n  {slip}") for slip in slips]
        repairs += [("\n  # distributed training", "\n    # distributed training")]
    (directory / "train.py").write_text(block(source, 3, 0, repairs))
    for name, text in QUICK_START_FILES.items():
        (directory / name).write_text(text)
    write_clicks(directory / "raw_data" / "part-0", 10_050)


def printed_aucs(printed: str) -> list[float]:
    return [float(text) for text in re.findall(r"^auc\t.*?\[?([01]\.\d+)", printed, re.M)]


@pytest.mark.parametrize("source", SOURCES)
def test_quick_start_trains_alone(source: str, tmp_path: Path) -> None:
    quick_start(source, tmp_path)
    aucs = printed_aucs(run(tmp_path, *block(source, 3, 1).split()[1:]))
    assert len(aucs) == 3
    assert 0.45 < aucs[0] < aucs[-1]


@pytest.mark.parametrize("source", SOURCES)
def test_quick_start_trains_on_servers(source: str, tmp_path: Path) -> None:
    quick_start(source, tmp_path)
    words = block(source, 3, 2).split()
    assert words[:3] == ["python", "-m", "sparsefleet.distributed.launch_ps"]
    port = free_ports(1)[0]  # other tests may use the launcher's default port
    run(tmp_path, *words[1:-1], "--start_port", str(port), words[-1])
    aucs = printed_aucs((tmp_path / "logs" / "workerlog.0").read_text())
    assert len(aucs) == 3
    assert 0.45 < aucs[0] < aucs[-1]
    assert np.isfinite(aucs).all()
