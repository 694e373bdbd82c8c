import numpy as np
import paddle
import paddle.fluid as fluid
from network import HEIGHT, inputs, net
from slot_reader import SlotReader

program, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(program, startup):
    with fluid.unique_name.guard():
        data = inputs()
        loss, auc = net(*data)
place = fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(startup)
fluid.io.load_persistables(exe, "model", program)
for name in [var.name for var in program.list_vars() if var.name.startswith("_generated_var")]:
    state = fluid.global_scope().find_var(name).get_tensor()
    state.set(np.zeros(state._get_dims(), np.int64), place)
slots = SlotReader()
slots.set_height(HEIGHT)
feeder = fluid.DataFeeder(feed_list=data, place=place)
for batch in paddle.batch(slots.samples("data/part-0"), batch_size=50)():
    loss_value, auc_value = exe.run(program, feed=feeder.feed(batch), fetch_list=[loss, auc])
print("loss %.3f auc %.4f" % (loss_value, float(np.array(auc_value))))
