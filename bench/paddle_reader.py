"""Paddle 1.8.5's QueueDataset over the files of bench/reader.py, in its own Python 3.7.

    <python 3.7 with paddlepaddle==1.8.5> bench/paddle_reader.py BATCH COUNTS SLOTS FILE...

Prints `ready`, then for each input line `THREADS` reads all files once and answers with one line of
JSON: seconds and CPU seconds, including its children. It times `infer_from_dataset` over a program
with a single operator, the mean of the label: Paddle's readers, queues and batches, with almost
nothing to feed.
"""

import json
import resource
import sys
import time

from paddle import fluid


def cpu_s():
    """Return the CPU seconds of this process and its finished children."""
    taken = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in taken)


def main():
    batch_size, num_counts, num_slots = (int(word) for word in sys.argv[1:4])
    files = sys.argv[4:]
    dense = fluid.layers.data(name="dense", shape=[num_counts], dtype="float32")
    slots = [
        fluid.layers.data(name=f"C{i}", shape=[1], dtype="int64", lod_level=1)
        for i in range(1, num_slots + 1)
    ]
    label = fluid.layers.data(name="label", shape=[1], dtype="float32")
    fluid.layers.mean(label)
    executor = fluid.Executor(fluid.CPUPlace())
    print("ready", flush=True)
    for line in sys.stdin:
        dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
        dataset.set_use_var([dense, *slots, label])
        dataset.set_pipe_command("cat")
        dataset.set_batch_size(batch_size)
        dataset.set_thread(int(line))
        dataset.set_filelist(files)
        begun, cpu_begun_s = time.time(), cpu_s()
        executor.infer_from_dataset(program=fluid.default_main_program(), dataset=dataset)
        answer = {"seconds": time.time() - begun, "cpu_s": cpu_s() - cpu_begun_s}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
