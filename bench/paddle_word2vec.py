"""Skip-gram in PaddlePaddle 1.8.5, in its own Python 3.7: a process of a side of bench/word2vec.py.

    <python 3.7 with paddlepaddle==1.8.5> bench/paddle_word2vec.py MODE --threads 2 --files FILE...

MODE is local, sync, half_async, async or geo; bench/paddle_training.py describes the requests and
answers.
"""

from paddle import fluid

from paddle_training import Training, answer_lines, parse_arguments

NUM_WORDS, DIM, NUM_NOISE = 50000, 300, 5


def variables():
    """The slots of a line, in order."""
    return [
        fluid.layers.data(name=name, shape=[1], dtype="int64", lod_level=1)
        for name in ("word", "company", "noise")
    ]


def rows(ids, name, width, initializer):
    attribute = fluid.ParamAttr(name=name, initializer=initializer)
    return fluid.layers.embedding(ids, [NUM_WORDS + 1, width], is_sparse=True, param_attr=attribute)


def network(inputs):
    """Return the mean loss per pair."""
    layers, zeros = fluid.layers, fluid.initializer.Constant(0.0)
    word, company, noise = inputs
    noise = layers.reshape(noise, shape=[-1, 1])
    noise.stop_gradient = True
    spread = fluid.initializer.Uniform(-0.5 / DIM, 0.5 / DIM)
    words = rows(word, "words", DIM, spread)
    of_true = rows(company, "contexts", DIM, zeros)
    of_noise = layers.reshape(rows(noise, "contexts", DIM, zeros), shape=[-1, NUM_NOISE, DIM])
    bias = layers.reshape(rows(noise, "biases", 1, zeros), shape=[-1, NUM_NOISE])
    true_logits = layers.reduce_sum(layers.elementwise_mul(words, of_true), dim=1, keep_dim=True)
    true_logits = true_logits + rows(company, "biases", 1, zeros)
    as_rows = layers.reshape(words, shape=[-1, 1, DIM])
    noise_logits = layers.matmul(as_rows, of_noise, transpose_y=True)
    noise_logits = layers.reshape(noise_logits, shape=[-1, NUM_NOISE]) + bias
    return layers.reduce_mean(losses(true_logits, 1, 1.0) + losses(noise_logits, NUM_NOISE, 0.0))


def losses(logits, width, label):
    labels = fluid.layers.fill_constant_batch_size_like(
        logits, shape=[-1, width], value=label, dtype="float32"
    )
    each = fluid.layers.sigmoid_cross_entropy_with_logits(logits, labels)
    return fluid.layers.reduce_sum(each, dim=1)


def main():
    options = parse_arguments(__doc__, lr=1.0)
    inputs = variables()
    answer_lines(Training(options, inputs, network(inputs)))


if __name__ == "__main__":
    main()
