import math

import paddle.fluid as fluid

HEIGHT = 1000


def inputs():
    number = fluid.layers.data(name="number", shape=[1], dtype="float32")
    words = fluid.layers.data(name="words", shape=[1], lod_level=1, dtype="int64")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    return [number, words, label]


def net(number, words, label):
    rows = fluid.layers.embedding(
        input=words,
        size=[HEIGHT, 8],
        is_sparse=True,
        param_attr=fluid.ParamAttr(name="words_table", initializer=fluid.initializer.Uniform()),
    )
    merged = fluid.layers.concat([number, fluid.layers.sequence_pool(rows, "sum")], axis=1)
    hidden = fluid.layers.fc(
        input=merged,
        size=16,
        act="relu",
        param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.Normal(scale=1 / math.sqrt(merged.shape[1]))
        ),
    )
    predict = fluid.layers.fc(input=hidden, size=2, act="softmax")
    cost = fluid.layers.cross_entropy(input=predict, label=label)
    auc, batch_auc, states = fluid.layers.auc(input=predict, label=label)
    return fluid.layers.reduce_mean(cost), auc
