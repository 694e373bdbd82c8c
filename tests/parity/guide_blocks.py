"""The examples of Fluid guides, rewritten: the same calls, in the same order.

Keys: number of the document, place of the block in it; see `seed_text`.
"""

from __future__ import annotations

__all__ = ["OURS"]

_PARALLEL = """
exec_strategy = fluid.ExecutionStrategy()
exec_strategy.num_threads = 4
build_strategy = fluid.BuildStrategy()
if int(os.getenv("CPU_NUM")) > 1:
    build_strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
pe = fluid.ParallelExecutor(
    use_cuda=False,
    loss_name=avg_cost.name,
    main_program=main_program,
    build_strategy=build_strategy,
    exec_strategy=exec_strategy,
)
"""

_SPARSE = """
data = fluid.layers.data(name="ids", shape=[1], dtype="int64")
fc = fluid.layers.embedding(input=data, size=[dict_size, 16], is_sparse=True)
"""

_DATASET = """
dataset = fluid.DatasetFactory().create_dataset()
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset)
"""

_TRANSPILER = "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler"

_IMPORTS = f"""
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from {_TRANSPILER} import fleet
from {_TRANSPILER}.distributed_strategy_factory import DistributedStrategyFactory
"""

_STRATEGIES = """
strategy = DistributedStrategyFactory.create_sync_strategy()
strategy = DistributedStrategyFactory.create_half_async_strategy()
strategy = DistributedStrategyFactory.create_async_strategy()
strategy = DistributedStrategyFactory.create_geo_strategy(update_frequency=400)
# step2
fleet.init(role_maker.PaddleCloudRoleMaker())
optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(learning_rate), strategy)
optimizer.minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
elif fleet.is_worker():
    fleet.init_worker()
    exe.run(fleet.startup_program)
    exe.run(fleet.main_program)
    fleet.stop_worker()
"""

_COMPILED = """
compiled_program = fluid.compiler.CompiledProgram(fleet.main_program).with_data_parallel(
    loss_name=loss.name,
    build_strategy=strategy.get_build_strategy(),
    exec_strategy=strategy.get_execute_strategy(),
)
"""

_TUNING = """
strategy = DistributedStrategyFactory.create_sync_strategy()
config = strategy.get_program_config()
config.min_block_size = 81920
config = DistributeTranspilerConfig()
config.min_block_size = 81920
strategy.set_program_config(config)
"""

_SAVING = """
import paddle.fluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
path = "./models"
trainer_id = 0
if trainer_id == 0:
    prog = fluid.default_main_program()
    fluid.io.save_persistables(exe, path, prog)
"""

_LOADING = """
import paddle.fluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
path = "./models"
pserver_endpoints = "127.0.0.1:1001,127.0.0.1:1002"
trainers = 4
training_role == "PSERVER"
current_endpoint = "127.0.0.1:1002"
t = fluid.DistributeTranspiler(config=fluid.DistributeTranspilerConfig())
t.transpile(
    trainer_id,
    pservers=pserver_endpoints,
    trainers=trainers,
    sync_mode=True,
    current_endpoint=current_endpoint,
)
if training_role == "PSERVER":
    pserver_prog = t.get_pserver_program(current_endpoint)
    pserver_startup = t.get_startup_program(current_endpoint, pserver_prog)
    exe.run(pserver_startup)
    fluid.io.load_persistables(exe, path, pserver_prog)
    exe.run(pserver_prog)
if training_role == "TRAINER":
    main_program = t.get_trainer_program()
    exe.run(main_program)
"""

_INFINITE = """
def infinite_reader(file_path):
    while True:
        with open(file_path) as fn:
            for line in fn:
                yield process(line)


def train():
    ...
    for pass_id in xrange(NUM_PASSES):
        if pass_id == 0:
            data_loader.start()
        for batch_id in (iters_per_pass):
            exe.run()
    data_loader.reset()
"""

_COLLECTIVE = """
dist_strategy = DistributedStrategy()
dist_strategy.nccl_comm_num = 2
exec_strategy = fluid.ExecutionStrategy()
exe_st.num_threads = 3
exec_strategy.num_iteration_per_drop_scope = 30
dist_strategy.exec_strategy = exec_strategy
dist_strategy.fuse_all_reduce_ops = True
             ...
with fluid.program_guard(main_prog, startup_prog):
    params = model.params
    optimizer = optimizer_setting(params)
    dist_optimizer = fleet.distributed_optimizer(optimizer, strategy=dist_strategy)
    dist_optimizer.minimize(avg_cost)
             ...
for pass_id in range(PASS_NUM):
    batch_id = 0
    while True:
        if batch_id % fetch_frequency == 0:
            fetched = exe.run(main_prog, fetch_list)
        else:
            exe.run([])
"""

_QUICK_START = """
import os

import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from args import parse_args
from network_conf import ctr_dnn_model_dataset
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

sparse_feature_dim = 10000001
thread_num = 10
args = parse_args()


def main_function(is_local):
    dense_input = fluid.layers.data(name="dense_input", shape=[13], dtype="float32")
    sparse_input_ids = [
        fluid.layers.data(name="C" + str(i), shape=[1], lod_level=1, dtype="int64")
        for i in range(1, 27)
    ]
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var([dense_input] + sparse_input_ids + [label])
    dataset.set_pipe_command("python criteo_reader.py %d" % sparse_feature_dim)
    dataset.set_batch_size(100)
    dataset.set_thread(thread_num)
    dataset.set_filelist(["raw_data/part-%d" % x for x in range(len(os.listdir("raw_data")))])
    loss, auc_var, _ = ctr_dnn_model_dataset(
        dense_input, sparse_input_ids, label, 10, sparse_feature_dim
    )
    exe = fluid.Executor(fluid.CPUPlace())

    def train_loop(epoch=20):
        for i in range(epoch):
            exe.train_from_dataset(
                program=fluid.default_main_program(),
                dataset=dataset,
                fetch_list=[auc_var],
                fetch_info=["auc"],
                debug=False,
            )

    def local_train(optimizer):
        fluid.optimizer.SGD(learning_rate=1e-4).minimize(loss)
        exe.run(fluid.default_startup_program())
        train_loop()

    def dist_train(optimizer):
        fleet.init(role_maker.PaddleCloudRoleMaker())
        strategy = DistributeTranspilerConfig()
        strategy.sync_mode = False
        optimizer = fluid.optimizer.SGD(learning_rate=1e-4)
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
        if fleet.is_server():
            fleet.init_server()
            fleet.run_server()
        elif fleet.is_worker():
            fleet.init_worker()
            exe.run(fluid.default_startup_program())
            train_loop()

    if is_local:
        local_train(optimizer)
    else:
        dist_train(optimizer)


if __name__ == "__main__":
    main_function(args.is_local)
"""

OURS: dict[tuple[int, int], str] = {
    (0, 0): _PARALLEL,
    (0, 1): _SPARSE,
    (0, 2): _DATASET,
    (0, 3): _IMPORTS,
    (0, 4): _STRATEGIES,
    (0, 5): _COMPILED,
    (0, 6): _TUNING,
    (1, 0): _SAVING,
    (1, 1): _LOADING,
    (2, 0): _INFINITE,
    (2, 1): _COLLECTIVE,
    (3, 0): _QUICK_START,
    (3, 1): "python train.py --is_local 1\n",
    (3, 2): "python -m paddle.distributed.launch_ps --worker_num 2 --server_num 2 train.py\n",
    (4, 0): _PARALLEL,
    (4, 1): _SPARSE,
}
"""Mistakes in the documents (an undefined name, `==` for `=`) are kept: the tests fix them."""
