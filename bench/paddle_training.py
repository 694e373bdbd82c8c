"""One process of a side in PaddlePaddle 1.8.5, in its own Python 3.7, for any model.

It is local, or a server or worker of a job, according to Fluid's environment variables. A worker
prints `ready`, then answers each input line with one line of JSON. `run BATCH EXAMPLES` trains on
all its files once, whatever EXAMPLES says, from memory (InMemoryDataset, loaded before the clock
starts) or from the files (QueueDataset); `auc FILE` scores the arrays of an .npz file with the
trained model. Ends at the end of its input.
"""

import argparse
import json
import resource
import sys
import time

from paddle import fluid

GEO_INTERVAL = 100


def strategy_of(mode):
    from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
        distributed_strategy,
    )

    factory = distributed_strategy.StrategyFactory
    if mode == "geo":
        return factory.create_geo_strategy(GEO_INTERVAL)
    return getattr(factory, f"create_{mode}_strategy")()


class Training:
    """The program of this process, and its datasets by batch size.

    inputs: the slots of a line, in order; loss: of one batch.
    """

    def __init__(self, options, inputs, loss):
        self.options = options
        self.datasets = {}
        self.inputs = inputs
        self.loss = loss
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
        """Run a server until it is ended."""
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
        """Return the dataset, loaded if its records should be in memory."""
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


def cpu_s():
    """Return the CPU seconds of this process and its finished children, such as pipe commands."""
    taken = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in taken)


def count_lines(files):
    total = 0
    for name in files:
        with open(name) as file:
            total += sum(1 for _ in file)
    return total


def parse_arguments(about, lr):
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("mode", choices=["local", "sync", "half_async", "async", "geo"])
    parser.add_argument("--source", choices=["memory", "files"], default="memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--row-lr", type=float, help="of CTR-DNN's rows (default: as --lr)")
    parser.add_argument(
        "--inputs", nargs=2, type=int, default=[13, 26], help="CTR-DNN's counts and slots"
    )
    parser.add_argument("--files", nargs="*", default=[], help="MultiSlot; a server has none")
    options = parser.parse_args()
    options.examples = count_lines(options.files)
    return options


def answer_lines(training):
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        answer = training.auc(words[0]) if verb == "auc" else training.run(int(words[0]))
        print(json.dumps(answer), flush=True)
    if training.fleet is not None:
        training.fleet.stop_worker()
