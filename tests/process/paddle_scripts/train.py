from __future__ import print_function

import argparse
import os

import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from network import HEIGHT, inputs, net
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig


def train(program, startup, data, auc, epochs, model_dir=""):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var(data)
    dataset.set_pipe_command("python slot_reader.py %d" % HEIGHT)
    dataset.set_batch_size(20)
    dataset.set_thread(2)
    dataset.set_filelist(["data/%s" % name for name in sorted(os.listdir("data"))])
    for _ in range(epochs):
        exe.train_from_dataset(
            program=program, dataset=dataset, fetch_list=[auc], fetch_info=["auc"], print_period=10
        )
    if model_dir:
        fluid.io.save_persistables(exe, model_dir, program)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--is_local", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    data = inputs()
    loss, auc = net(*data)
    optimizer = fluid.optimizer.Adagrad(learning_rate=0.1)
    if args.is_local:
        optimizer.minimize(loss)
        main_program, startup = fluid.default_main_program(), fluid.default_startup_program()
        train(main_program, startup, data, auc, args.epochs, "model")
        return
    fleet.init(role_maker.PaddleCloudRoleMaker())
    strategy = DistributeTranspilerConfig()
    strategy.sync_mode = False
    strategy.runtime_split_send_recv = True
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        train(fleet.main_program, fleet.startup_program, data, auc, args.epochs)
        if fleet.is_first_worker():
            fleet.save_persistables(fluid.Executor(fluid.CPUPlace()), "model")
        fleet.stop_worker()
        print("worker %d of %d is done" % (fleet.worker_index(), fleet.worker_num()))


if __name__ == "__main__":
    main()
