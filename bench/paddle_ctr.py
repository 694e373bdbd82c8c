"""CTR-DNN in PaddlePaddle 1.8.5, in its own Python 3.7: one process of a side of bench/ctr_dnn.py.

    <python 3.7 with paddlepaddle==1.8.5> bench/paddle_ctr.py MODE --threads 2 --files FILE...

MODE is local, sync, half_async, async or geo; servers and workers of a job know what they are by
Fluid's environment variables. A worker says `ready`, then answers each line it is sent with one
line of JSON. `run BATCH EXAMPLES` trains on all its files once, whatever EXAMPLES says, out of
memory (InMemoryDataset, loaded before the clock starts) or out of the files (QueueDataset);
`auc FILE` scores the arrays of an .npz file with what was trained. Ends when its input does.
"""

import argparse
import json
import resource
import sys
import tempfile
import time

import numpy as np
from paddle import fluid

NUM_COUNTS, NUM_SLOTS, DIM, NUM_IDS = 13, 26, 10, 1000001
WIDTHS = (400, 400, 400)
GEO_INTERVAL = 100
SCORED_AT_ONCE = 2000


def variables(lod_level):
    """The slots of a line, in order."""
    dense = fluid.layers.data(name="dense", shape=[NUM_COUNTS], dtype="float32")
    slots = [
        fluid.layers.data(name=f"C{i}", shape=[1], dtype="int64", lod_level=lod_level)
        for i in range(1, NUM_SLOTS + 1)
    ]
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    return [dense, *slots, label]


def network(inputs):
    """Mean loss and the chances float32[B, 2]."""
    dense, *slots, label = inputs
    table = fluid.ParamAttr(name="ids", initializer=fluid.initializer.Uniform(-0.05, 0.05))
    rows = [
        fluid.layers.embedding(slot, [NUM_IDS, DIM], is_sparse=True, param_attr=table)
        for slot in slots
    ]
    hidden = fluid.layers.concat([*rows, dense], axis=1)
    for width in WIDTHS:
        hidden = fluid.layers.fc(hidden, width, act="relu", param_attr=scaled(hidden))
    chances = fluid.layers.fc(hidden, 2, act="softmax", param_attr=scaled(hidden))
    return fluid.layers.mean(fluid.layers.cross_entropy(chances, label)), chances


def scaled(hidden):
    scale = hidden.shape[1] ** -0.5
    return fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=scale))


def strategy_of(mode):
    from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
        distributed_strategy,
    )

    factory = distributed_strategy.StrategyFactory
    if mode == "geo":
        return factory.create_geo_strategy(GEO_INTERVAL)
    return getattr(factory, f"create_{mode}_strategy")()


class Training:
    """The programs of this process, and its datasets by batch size."""

    def __init__(self, options):
        self.options = options
        self.datasets = {}
        self.test_program = fluid.Program()
        with fluid.program_guard(self.test_program, fluid.Program()), fluid.unique_name.guard():
            self.test_inputs = variables(0)
            _, self.test_chances = network(self.test_inputs)
        self.inputs = variables(1)
        self.loss, _ = network(self.inputs)
        self.executor = fluid.Executor(fluid.CPUPlace())
        self.fleet = None
        optimizer = fluid.optimizer.SGD(learning_rate=options.lr)
        if options.mode == "local":
            optimizer.minimize(self.loss)
            self.executor.run(fluid.default_startup_program())
            self.program = fluid.default_main_program()
        else:
            self.join(optimizer)

    def join(self, optimizer):
        """A server serves here until it is ended."""
        from paddle.fluid.incubate.fleet.base import role_maker
        from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet

        fleet.init(role_maker.PaddleCloudRoleMaker())
        strategy = strategy_of(self.options.mode)
        fleet.distributed_optimizer(optimizer, strategy).minimize(self.loss)
        if fleet.is_server():
            fleet.init_server()
            fleet.run_server()
            sys.exit(0)
        fleet.init_worker()
        self.executor.run(fleet.startup_program)
        self.fleet, self.program = fleet, fleet.main_program

    def dataset(self, batch):
        """Loaded, if its records are to lie in memory."""
        is_kept = self.options.source == "memory"
        if not is_kept or batch not in self.datasets:
            kind = "InMemoryDataset" if is_kept else "QueueDataset"
            made = fluid.DatasetFactory().create_dataset(kind)
            made.set_use_var(self.inputs)
            made.set_pipe_command("cat")
            made.set_batch_size(batch)
            made.set_thread(self.options.threads)
            made.set_filelist(self.options.files)
            if is_kept:
                made.load_into_memory()
            self.datasets[batch] = made
        return self.datasets[batch]

    def run(self, batch):
        dataset = self.dataset(batch)
        begin, cpu_begin_s = time.monotonic(), cpu_s()
        self.executor.train_from_dataset(program=self.program, dataset=dataset)
        return {
            "examples": self.options.examples,
            "begin": begin,
            "end": time.monotonic(),
            "cpu_s": cpu_s() - cpu_begin_s,
        }

    def auc(self, path):
        """Of a job, what its servers hold."""
        arrays = np.load(path)
        if self.fleet is None:
            return {"auc": self.score(arrays)}
        folder = tempfile.mkdtemp()
        self.fleet.save_persistables(self.executor, folder, self.fleet.main_program)
        with fluid.scope_guard(fluid.Scope()):
            fluid.io.load_persistables(self.executor, folder, self.test_program)
            return {"auc": self.score(arrays)}

    def score(self, arrays):
        counts, ids, clicks = arrays["counts"], arrays["ids"], arrays["clicks"]
        scores = []
        for begin in range(0, len(clicks), SCORED_AT_ONCE):
            part = slice(begin, begin + SCORED_AT_ONCE)
            columns = [ids[part, slot : slot + 1] for slot in range(NUM_SLOTS)]
            values = [counts[part], *columns, clicks[part].reshape(-1, 1)]
            feed = {one.name: values[index] for index, one in enumerate(self.test_inputs)}
            [found] = self.executor.run(self.test_program, feed, [self.test_chances.name])
            scores.append(found[:, 1])
        return area_under_curve(np.concatenate(scores), clicks)


def area_under_curve(scores, clicks):
    """Equal scores share their ranks."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ((ends - counts + 1 + ends) / 2.0)[inverse]
    positives = int(clicks.sum())
    negatives = len(clicks) - positives
    above = ranks[clicks == 1].sum() - positives * (positives + 1) / 2.0
    return float(above / positives / negatives)


def cpu_s():
    """Of this process and of the children that have ended: pipe commands."""
    taken = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in taken)


def count_lines(files):
    total = 0
    for name in files:
        with open(name) as file:
            total += sum(1 for _ in file)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["local", "sync", "half_async", "async", "geo"])
    parser.add_argument("--source", choices=["memory", "files"], default="memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--files", nargs="*", default=[], help="MultiSlot; a server has none")
    options = parser.parse_args()
    options.examples = count_lines(options.files)
    training = Training(options)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        answer = training.auc(words[0]) if verb == "auc" else training.run(int(words[0]))
        print(json.dumps(answer), flush=True)
    if training.fleet is not None:
        training.fleet.stop_worker()


if __name__ == "__main__":
    main()
