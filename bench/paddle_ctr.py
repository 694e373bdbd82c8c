"""CTR-DNN in PaddlePaddle 1.8.5, in its own Python 3.7: one process of a side of bench/ctr_dnn.py.

    <python 3.7 with paddlepaddle==1.8.5> bench/paddle_ctr.py MODE --threads 2 --files FILE...

MODE is local, sync, half_async, async or geo; bench/paddle_training.py describes the requests and
answers.
"""

import tempfile

import numpy as np
from paddle import fluid

from paddle_training import Training, answer_lines, parse_arguments

DIM, NUM_IDS = 10, 1000001
WIDTHS = (400, 400, 400)
SCORED_AT_ONCE = 2000


def variables(shape, lod_level):
    """The slots of a line, in order.

    shape: the numbers of counts and of slots with an id.
    """
    num_counts, num_slots = shape
    dense = fluid.layers.data(name="dense", shape=[num_counts], dtype="float32")
    slots = [
        fluid.layers.data(name=f"C{i}", shape=[1], dtype="int64", lod_level=lod_level)
        for i in range(1, num_slots + 1)
    ]
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    return [dense, *slots, label]


def network(inputs, row_rate=1.0):
    """Return the mean loss and the probabilities float32[B, 2].

    row_rate: the learning rate of rows, over that of layers.
    """
    dense, *slots, label = inputs
    drawn = fluid.initializer.Uniform(-0.05, 0.05)
    table = fluid.ParamAttr(name="ids", initializer=drawn, learning_rate=row_rate)
    rows = [
        fluid.layers.embedding(slot, [NUM_IDS, DIM], is_sparse=True, param_attr=table)
        for slot in slots
    ]
    hidden = fluid.layers.concat([*rows, dense], axis=1)
    for width in WIDTHS:
        hidden = fluid.layers.fc(hidden, width, act="relu", **begun_as_torch_does(hidden))
    chances = fluid.layers.fc(hidden, 2, act="softmax", **begun_as_torch_does(hidden))
    return fluid.layers.mean(fluid.layers.cross_entropy(chances, label)), chances


def begun_as_torch_does(hidden):
    """Return weight and bias settings of a layer, initialized like those of `torch.nn.Linear`."""
    bound = hidden.shape[1] ** -0.5
    drawn = fluid.initializer.Uniform(-bound, bound)
    return {name: fluid.ParamAttr(initializer=drawn) for name in ("param_attr", "bias_attr")}


class CtrTraining(Training):
    """The training program, and a second one for scoring."""

    def __init__(self, options):
        self.test_program = fluid.Program()
        with fluid.program_guard(self.test_program, fluid.Program()), fluid.unique_name.guard():
            self.test_inputs = variables(options.inputs, 0)
            _, self.test_chances = network(self.test_inputs)
        inputs = variables(options.inputs, 1)
        loss, _ = network(inputs, (options.row_lr or options.lr) / options.lr)
        super().__init__(options, inputs, loss)

    def auc(self, path):
        """Fetch what the servers of a job hold: only the first worker can."""
        arrays = np.load(path)
        if self.fleet is None:
            return {"auc": self.score(arrays)}
        if not self.fleet.is_first_worker():
            return {}
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
            columns = [ids[part, slot : slot + 1] for slot in range(ids.shape[1])]
            values = [counts[part], *columns, clicks[part].reshape(-1, 1)]
            feed = {one.name: values[index] for index, one in enumerate(self.test_inputs)}
            [found] = self.executor.run(self.test_program, feed, [self.test_chances.name])
            scores.append(found[:, 1])
        return area_under_curve(np.concatenate(scores), clicks)


def area_under_curve(scores, clicks):
    """Return the AUC; equal scores share their ranks."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ((ends - counts + 1 + ends) / 2.0)[inverse]
    positives = int(clicks.sum())
    negatives = len(clicks) - positives
    above = ranks[clicks == 1].sum() - positives * (positives + 1) / 2.0
    return float(above / positives / negatives)


if __name__ == "__main__":
    answer_lines(CtrTraining(parse_arguments(__doc__, lr=0.1)))
