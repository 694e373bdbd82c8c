"""Trains in a custom loop until a file `stop` appears: own_loop_script.py fleet|executor."""

import os
import sys
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


def train_by_steps():
    from sparsefleet import fleet
    from sparsefleet.nn import SparseEmbedding

    model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))
    fleet.init()
    fleet.distribute(model, torch.optim.Adagrad(model.parameters(), lr=0.1), "async")
    fleet.init_worker()
    while not os.path.exists("stop"):
        ids = torch.randint(0, 1000, (32,))
        with fleet.step(ids) as step:
            step.backward(model(ids).pow(2).mean())
        time.sleep(0.005)
    fleet.stop_worker()


def train_by_runs():
    from sparsefleet import fluid
    from sparsefleet.fluid.incubate.fleet.base import role_maker
    from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
        DistributeTranspilerConfig,
        fleet,
    )

    fleet.init(role_maker.PaddleCloudRoleMaker())
    ids = fluid.layers.data("ids", [1], dtype="int64")
    rows = fluid.layers.embedding(ids, [1000, 4], is_sparse=True)
    cost = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 1)))
    config = DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = True
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), config).minimize(cost)
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    while not os.path.exists("stop"):
        feed = {"ids": np.random.randint(0, 1000, (32, 1))}
        exe.run(fleet.main_program, feed=feed, fetch_list=[cost])
        time.sleep(0.005)
    fleet.stop_worker()


{"fleet": train_by_steps, "executor": train_by_runs}[sys.argv[1]]()
