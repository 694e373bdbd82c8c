"""Trains on several GPUs, or processes in their place; ranks have different numbers of batches."""

import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))

x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))

strategy = DistributedStrategy()
strategy.nccl_comm_num = 2
optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy=strategy)
optimizer.minimize(loss, fluid.default_startup_program())

gpu = int(os.environ["FLAGS_selected_gpus"])  # noqa: SIM112  Paddle's name
exe = fluid.Executor(fluid.CUDAPlace(gpu))
exe.run(fluid.default_startup_program())
draw = np.random.RandomState(fleet.worker_index())
for _ in range(200 + 5 * fleet.worker_index()):
    numbers = draw.rand(8, 4).astype("float32")
    target = numbers.sum(axis=1, keepdims=True)
    found = exe.run(fleet.main_program, feed={"x": numbers, "y": target}, fetch_list=[loss])

fleet.settle()
weights = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
print("loss %.4f weights %s" % (found[0][0], weights.reshape(-1).tolist()))
