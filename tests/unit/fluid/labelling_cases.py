"""Labels along sequences, and texts of frames."""

from __future__ import annotations

import numpy as np
from tests.unit.fluid.program_cases import case, data, wave, with_gradients

LENGTHS = [[2, 4, 1]]


def labels(*shape, high):
    return (np.arange(int(np.prod(shape))) * 7 % high).astype("int64").reshape(shape)


@case
def crf_over_sequences(fluid):
    rows, given = wave(7, 3) * 4, labels(7, 1, high=3)
    x, label = data(fluid, "x", rows, 1), fluid.data("label", [None, 1], "int64", 1)
    cost = fluid.layers.linear_chain_crf(x, label, fluid.ParamAttr("crf"))
    path = fluid.layers.crf_decoding(x, fluid.ParamAttr("crf"))
    right = fluid.layers.crf_decoding(x, fluid.ParamAttr("crf"), label=label)
    feed = {"x": (rows, LENGTHS), "label": (given, LENGTHS)}
    return feed, [path, right, *with_gradients(fluid, cost, [x])]


@case
def crf_over_padded_sequences(fluid):
    rows, given, sizes = wave(3, 4, 3) * 4, labels(3, 4, high=3), np.array([[2], [4], [1]], "int64")
    x, label = data(fluid, "x", rows, batch=True), data(fluid, "label", given, batch=True)
    length = data(fluid, "length", sizes, batch=True)
    cost = fluid.layers.linear_chain_crf(x, label, fluid.ParamAttr("crf"), length)
    path = fluid.layers.crf_decoding(x, fluid.ParamAttr("crf"), length=length)
    right = fluid.layers.crf_decoding(x, fluid.ParamAttr("crf"), label, length)
    feed = {"x": rows, "label": given, "length": sizes}
    return feed, [path, right, *with_gradients(fluid, cost, [x])]


def _chunks(fluid, scheme, types, tags, excluded=None):
    count = types * tags + 1
    found, wanted = labels(23, 1, high=count), labels(23, 1, high=count)
    found[5:11] = (found[5:11] + 2) % count
    found[15] = (found[15] + 1) % count
    lod = [[8, 1, 14]]
    inputs = [fluid.data(name, [None, 1], "int64", 1) for name in ("found", "wanted")]
    out = fluid.layers.chunk_eval(*inputs, scheme, types, excluded)
    return {"found": (found, lod), "wanted": (wanted, lod)}, list(out)


@case
def chunks_iob(fluid):
    return _chunks(fluid, "IOB", 3, 2)


@case
def chunks_ioe(fluid):
    return _chunks(fluid, "IOE", 2, 2)


@case
def chunks_iobes(fluid):
    return _chunks(fluid, "IOBES", 2, 4, [1])


@case
def chunks_plain(fluid):
    return _chunks(fluid, "plain", 4, 1)


@case
def chunks_of_padded_sequences(fluid):
    given, sizes = labels(2, 6, high=7), np.array([6, 3], "int64")
    found = given.copy()
    found[0, 2] = 6
    inputs = [data(fluid, "found", found, batch=True), data(fluid, "wanted", given, batch=True)]
    length = data(fluid, "length", sizes, batch=True)
    out = fluid.layers.chunk_eval(*inputs, "IOB", 3, seq_length=length)
    return {"found": found, "wanted": given, "length": sizes}, list(out)


@case
def ctc_over_sequences(fluid):
    rows, given = wave(9, 4) * 4, np.array([[1], [2], [2], [3]], "int32")
    x, label = data(fluid, "x", rows, 1), fluid.data("label", [None, 1], "int32", 1)
    cost = fluid.layers.warpctc(x, label, blank=0, norm_by_times=True)
    feed = {"x": (rows, [[4, 5]]), "label": (given, [[1, 3]])}
    return feed, with_gradients(fluid, cost, [x])


@case
def ctc_over_padded_sequences(fluid):
    rows, given = wave(5, 2, 4) * 4, np.array([[1, 0, 0], [2, 2, 3]], "int32")
    sizes, label_sizes = np.array([4, 5], "int64"), np.array([1, 3], "int64")
    x, label = data(fluid, "x", rows), data(fluid, "label", given, batch=True)
    lengths = [
        data(fluid, "frames", sizes, batch=True),
        data(fluid, "symbols", label_sizes, batch=True),
    ]
    cost = fluid.layers.warpctc(x, label, 0, False, *lengths)
    feed = {"x": rows, "label": given, "frames": sizes, "symbols": label_sizes}
    return feed, with_gradients(fluid, cost, [x])


@case
def ctc_decoded_greedily(fluid):
    rows, padded = np.abs(wave(9, 4)), np.abs(wave(2, 5, 4))
    sizes = np.array([[5], [3]], "int64")
    x, y = data(fluid, "x", rows, 1), data(fluid, "y", padded, batch=True)
    length = data(fluid, "length", sizes, batch=True)
    one = fluid.layers.ctc_greedy_decoder(x, blank=0)
    other, count = fluid.layers.ctc_greedy_decoder(y, 3, length, padding_value=9)
    return {"x": (rows, [[4, 5]]), "y": padded, "length": sizes}, [one, other, count]


@case
def distances_of_texts(fluid):
    one, other = labels(9, 1, high=5), labels(8, 1, high=4)
    inputs = [fluid.data(name, [None, 1], "int64", 1) for name in ("one", "other")]
    relative, count = fluid.layers.edit_distance(*inputs)
    plain, _ = fluid.layers.edit_distance(*inputs, normalized=False, ignored_tokens=[1, 3])
    feed = {"one": (one, [[4, 5]]), "other": (other, [[5, 3]])}
    return feed, [relative, count, plain]


@case
def distances_of_padded_texts(fluid):
    one, other = labels(2, 5, high=5), labels(2, 4, high=4)
    sizes, other_sizes = np.array([5, 2], "int64"), np.array([3, 4], "int64")
    variables = [
        data(fluid, name, array, batch=True)
        for name, array in (("a", one), ("b", other), ("c", sizes), ("d", other_sizes))
    ]
    out, count = fluid.layers.edit_distance(
        variables[0], variables[1], False, None, variables[2], variables[3]
    )
    return {"a": one, "b": other, "c": sizes, "d": other_sizes}, [out, count]


@case
def evaluators_of_a_batch(fluid):
    one, other, lod = labels(9, 1, high=5), labels(9, 1, high=4), [[4, 5]]
    inputs = [fluid.data(name, [None, 1], "int64", 1) for name in ("one", "other")]
    texts = fluid.evaluator.EditDistance(*inputs, ignored_tokens=[0])
    chunks = fluid.evaluator.ChunkEvaluator(*inputs, "IOB", 2)
    feed = {"one": (one, lod), "other": (other, lod)}
    return feed, [*texts.metrics, *chunks.metrics]
