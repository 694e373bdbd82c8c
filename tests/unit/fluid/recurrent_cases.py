"""Recurrent layers, cells and decoders."""

from __future__ import annotations

import numpy as np
from tests.unit.fluid.program_cases import case, data, wave, with_gradients


@case
def dynamic_lstm_with_peepholes(fluid):
    array = wave(6, 8)
    x = data(fluid, "x", array, 1)
    hidden, cell = fluid.layers.dynamic_lstm(x, 8)
    return {"x": (array, [[1, 3, 2]])}, [cell, *with_gradients(fluid, hidden, [x])]


@case
def dynamic_lstm_backwards_with_first_state(fluid):
    array, first = wave(6, 8), wave(3, 2)
    x = data(fluid, "x", array, 1)
    h_0, c_0 = data(fluid, "h", first, batch=True), data(fluid, "c", first, batch=True)
    hidden, cell = fluid.layers.dynamic_lstm(
        x, 8, h_0, c_0, use_peepholes=False, is_reverse=True, candidate_activation="relu"
    )
    feed = {"x": (array, [[1, 3, 2]]), "h": first, "c": first}
    return feed, [cell, *with_gradients(fluid, hidden, [x, h_0, c_0])]


@case
def dynamic_lstmp_with_clips(fluid):
    array = wave(6, 8) * 3
    x = data(fluid, "x", array, 1)
    out, cell = fluid.layers.dynamic_lstmp(x, 8, 3, cell_clip=0.3, proj_clip=0.2)
    return {"x": (array, [[2, 4]])}, [out, cell]


@case
def dynamic_lstmp_projects(fluid):
    array = wave(6, 8)
    x = data(fluid, "x", array, 1)
    out, cell = fluid.layers.dynamic_lstmp(x, 8, 3, use_peepholes=True)
    return {"x": (array, [[2, 4]])}, [cell, *with_gradients(fluid, out, [x])]


@case
def dynamic_gru_in_both_modes(fluid):
    array = wave(6, 6)
    x = data(fluid, "x", array, 1)
    one = fluid.layers.dynamic_gru(x, 2)
    other = fluid.layers.dynamic_gru(x, 2, is_reverse=True, origin_mode=True)
    out = fluid.layers.concat([one, other], axis=1)
    return {"x": (array, [[1, 3, 2]])}, with_gradients(fluid, out, [x])


@case
def gru_unit_step(fluid):
    array, first = wave(3, 6), wave(3, 2)
    x, before = data(fluid, "x", array), data(fluid, "before", first)
    hidden, remembered, gate = fluid.layers.gru_unit(x, before, 6)
    feed = {"x": array, "before": first}
    return feed, [remembered, gate, *with_gradients(fluid, hidden, [x, before])]


@case
def gru_unit_step_in_origin_mode(fluid):
    array, first = wave(3, 6), wave(3, 2)
    x, before = data(fluid, "x", array), data(fluid, "before", first)
    hidden, _, _ = fluid.layers.gru_unit(x, before, 6, origin_mode=True)
    return {"x": array, "before": first}, with_gradients(fluid, hidden, [x, before])


@case
def lstm_unit_step(fluid):
    x, h, c = wave(3, 4), wave(3, 2), wave(3, 2) * 2
    variables = [data(fluid, "x", x), data(fluid, "h", h), data(fluid, "c", c)]
    hidden, cell = fluid.layers.lstm_unit(*variables, forget_bias=0.5)
    out = fluid.layers.concat([hidden, cell], axis=1)
    return {"x": x, "h": h, "c": c}, with_gradients(fluid, out, variables)


@case
def rnn_of_gru_cell(fluid):
    array, lengths = wave(2, 4, 3), np.array([4, 2], "int64")
    x, length = data(fluid, "x", array, batch=True), data(fluid, "length", lengths)
    cell = fluid.layers.GRUCell(2)
    out, state = fluid.layers.rnn(cell, x, sequence_length=length)
    return {"x": array, "length": lengths}, [state, *with_gradients(fluid, out, [x])]


@case
def rnn_of_lstm_cell_backwards(fluid):
    array = wave(4, 2, 3)
    x = data(fluid, "x", array)
    cell = fluid.layers.LSTMCell(2, fluid.ParamAttr("w"), fluid.ParamAttr("b"), forget_bias=0.5)
    out, states = fluid.layers.rnn(cell, x, time_major=True, is_reverse=True)
    both = fluid.layers.concat([fluid.layers.reshape(out, [-1, 2]), *states], axis=0)
    return {"x": array}, with_gradients(fluid, both, [x])


def _words(fluid):
    def embed(ids):
        return fluid.embedding(ids, [6, 3], param_attr=fluid.ParamAttr("words"))

    def project(x):
        return (
            fluid.layers.fc(
                x, 6, num_flatten_dims=len(x.shape) - 1, param_attr=fluid.ParamAttr("project")
            )
            * 6.0
        )

    return embed, project


@case
def decoding_by_beams(fluid):
    layers = fluid.layers
    first = wave(2, 4)
    init = data(fluid, "init", first, batch=True)
    embed, project = _words(fluid)
    cell = layers.GRUCell(4)
    decoder = layers.BeamSearchDecoder(cell, 0, 1, 3, embed, project)
    ids, states, lengths = layers.dynamic_decode(
        decoder, inits=init, max_step_num=5, return_length=True
    )
    return {"init": first}, [ids, states.log_probs, states.lengths, states.cell_states, lengths]


@case
def decoding_greedily(fluid):
    layers = fluid.layers
    first, begin = wave(2, 4), np.array([0, 2], "int64")
    init, start = data(fluid, "init", first, batch=True), data(fluid, "start", begin, batch=True)
    embed, project = _words(fluid)
    cell = layers.LSTMCell(4)
    helper = layers.GreedyEmbeddingHelper(embed, start, 1)
    decoder = layers.BasicDecoder(cell, helper, project)
    out, states = layers.dynamic_decode(
        decoder, inits=[init, init], max_step_num=4, impute_finished=True
    )
    return {"init": first, "start": begin}, [out.cell_outputs, out.sample_ids, *states]


@case
def decoding_in_training(fluid):
    layers = fluid.layers
    array, first, lengths = wave(2, 4, 3), wave(2, 4), np.array([4, 3], "int64")
    x, init = data(fluid, "x", array, batch=True), data(fluid, "init", first, batch=True)
    length = data(fluid, "length", lengths, batch=True)
    cell = layers.GRUCell(4)
    decoder = layers.BasicDecoder(cell, layers.TrainingHelper(x, length))
    out, _, found = layers.dynamic_decode(decoder, inits=init, return_length=True)
    feed = {"x": array, "init": first, "length": lengths}
    return feed, [found, out.sample_ids, *with_gradients(fluid, out.cell_outputs, [])]


@case
def beam_search_step_by_step(fluid):
    layers = fluid.layers
    lod = [[2, 1], [1, 1, 1]]
    before = (np.array([[4], [1], [3]], "int64"), lod)
    scores_before = (np.array([[-0.1], [-0.7], [-0.3]], "float32"), lod)
    words = (np.array([[2, 5, 1], [2, 3, 4], [1, 3, 5]], "int64"), lod)
    chances = (np.log(np.abs(wave(3, 3)) + 0.1), lod)
    variables = [
        fluid.data("before", [None, 1], "int64", 2),
        fluid.data("scores_before", [None, 1], "float32", 2),
        fluid.data("words", [None, 3], "int64", 2),
        fluid.data("chances", [None, 3], "float32", 2),
    ]
    feed = {"before": before, "scores_before": scores_before, "words": words, "chances": chances}
    first = layers.beam_search(*variables, beam_size=2, end_id=1, return_parent_idx=True)
    positive = layers.exp(variables[3])
    second = layers.beam_search(
        *variables[:3], positive, 3, 1, is_accumulated=False, return_parent_idx=True
    )
    return feed, [*first, *second]


@case
def beam_search_in_a_loop(fluid):
    """A language model of one matrix: the next word depends on the last one."""
    layers = fluid.layers
    words, beams, end = 5, 3, 1
    lod = [[1, 1], [1, 1]]
    begin = (np.array([[0], [2]], "int64"), lod)
    nothing = (np.zeros((2, 1), "float32"), lod)
    ids = fluid.data("ids", [None, 1], "int64", 2)
    scores = fluid.data("scores", [None, 1], "float32", 2)
    time = layers.fill_constant([1], "int64", 0)
    limit = layers.fill_constant([1], "int64", 6)
    condition = layers.less_than(time, limit)
    id_array = layers.create_array("int64")
    score_array = layers.create_array("float32")
    layers.array_write(ids, time, id_array)
    layers.array_write(scores, time, score_array)
    with layers.While(condition).block():
        before = layers.array_read(id_array, time)
        score = layers.array_read(score_array, time)
        logits = layers.embedding(before, [words, words], param_attr=fluid.ParamAttr("table"))
        chances = layers.softmax(layers.lod_reset(logits * 5.0, score))
        best, chosen = layers.topk(chances, k=beams)
        total = layers.elementwise_add(layers.log(best), layers.reshape(score, [-1]), axis=0)
        new_ids, new_scores = layers.beam_search(
            before, score, chosen, layers.lod_reset(total, score), beams, end
        )
        layers.increment(time)
        layers.array_write(new_ids, time, id_array)
        layers.array_write(new_scores, time, score_array)
        more = layers.less_than(time, limit)
        left = layers.logical_not(layers.is_empty(new_ids))
        layers.logical_and(more, left, out=condition)
    found, marks = layers.beam_search_decode(id_array, score_array, beams, end)
    return {"ids": begin, "scores": nothing}, [found, marks, time]


@case
def basic_lstm_of_two_layers_both_ways(fluid):
    array, sizes = wave(2, 4, 3), np.array([4, 2], "int32")
    x, length = data(fluid, "x", array, batch=True), data(fluid, "length", sizes, batch=True)
    out, hidden, cell = fluid.contrib.layers.basic_lstm(
        x, None, None, 2, num_layers=2, sequence_length=length, bidirectional=True
    )
    return {"x": array, "length": sizes}, [hidden, cell, *with_gradients(fluid, out, [x])]


@case
def basic_gru_with_first_states(fluid):
    array, first = wave(2, 4, 3), wave(2, 2, 2)
    x, init = data(fluid, "x", array, batch=True), data(fluid, "init", first)
    out, hidden = fluid.contrib.layers.basic_gru(x, init, 2, num_layers=2)
    return {"x": array, "init": first}, [hidden, *with_gradients(fluid, out, [x, init])]
