"""A Fluid script with the branches of a job, run by test_program_job.py.

program_script.py MODE OUT [START]: trains with fleet, or with the transpiler if MODE is
"transpiler", on files in the working directory; worker 0 saves to OUT; servers start from START if
given.
"""

import os
import sys

from sparsefleet import fluid
from sparsefleet.fluid.incubate.fleet.base import role_maker
from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    distributed_strategy as strategies,
)
from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet

mode, out, *start = sys.argv[1:]
ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=1)
label = fluid.layers.data("label", [1], dtype="int64")
rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True)
hidden = fluid.layers.fc(fluid.layers.sequence_pool(rows, "sum"), 8, act="relu")
guess = fluid.layers.fc(hidden, 2, act="softmax")
cost = fluid.layers.mean(fluid.layers.cross_entropy(guess, label))
auc = fluid.layers.auc(guess, label)[0]
optimizer = fluid.optimizer.Adam(0.02)
exe = fluid.Executor(fluid.CPUPlace())
rank = int(os.environ.get("PADDLE_TRAINER_ID", 0))


def train(program: fluid.Program) -> None:
    exe.run(fluid.default_startup_program())
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var([ids, label])
    dataset.set_batch_size(16)
    dataset.set_thread(2)
    dataset.set_filelist([f"part-{rank}-0", f"part-{rank}-1"])
    for _ in range(1 if start else 4):
        exe.train_from_dataset(program, dataset, fetch_list=[auc], fetch_info=["auc"])
    (found,) = exe.run(program.clone(for_test=True), feed=held_out(), fetch_list=[auc])
    print(f"worker {rank}: auc {float(found[0]):.4f}", flush=True)
    if rank == 0:
        fluid.io.save_persistables(exe, out, program)


def held_out() -> dict[str, object]:
    with open("part-test", encoding="ascii") as lines:
        words = [line.split() for line in lines]
    feeder = fluid.DataFeeder([ids, label], fluid.CPUPlace())
    fed: dict[str, object] = feeder.feed([([int(w) for w in x[1:4]], [int(x[5])]) for x in words])
    return fed


if mode == "transpiler":
    optimizer.minimize(cost)
    endpoint = f"{os.environ['POD_IP']}:{os.environ.get('PADDLE_PORT', 0)}"
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(
        rank,
        pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
        trainers=int(os.environ["PADDLE_TRAINERS_NUM"]),
        current_endpoint=endpoint,
    )
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        served = transpiler.get_pserver_program(endpoint)
        exe.run(transpiler.get_startup_program(endpoint, served))
        if start:
            fluid.io.load_persistables(exe, start[0], served)
        exe.run(served)
    else:
        train(transpiler.get_trainer_program())
        exe.close()
else:
    fleet.init(role_maker.PaddleCloudRoleMaker())
    strategy = getattr(strategies.StrategyFactory, f"create_{mode}_strategy")()
    fleet.distributed_optimizer(optimizer, strategy).minimize(cost)
    if fleet.is_server():
        fleet.init_server(*start)
        fleet.run_server()
    else:
        fleet.init_worker()
        train(fluid.default_main_program())  # without fleet.stop_worker(), like many scripts
