"""Programs with loops, branches and recurrent layers, for any `fluid` that has the API.

`scripts/record_fluid_values.py` runs them by the original and keeps what it found.
"""

from __future__ import annotations

import numpy as np

CASES = {}


def wave(*shape):
    """Numbers that look random and are the same everywhere: float32, within -0.5 .. 0.5."""
    count = int(np.prod(shape))
    return (np.sin(np.arange(1, count + 1) * 12.9898) * 0.5).astype("float32").reshape(shape)


def case(build):
    """build(fluid) -> (feed, variables to fetch); a feed is an array, or (array, LoD lengths)."""
    CASES[build.__name__] = build
    return build


def run_case(fluid, name):
    """What is fetched, as arrays; parameters are set to waves first."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        feed, fetches = CASES[name](fluid)
        place = fluid.CPUPlace()
        exe = fluid.Executor(place)
        if startup.global_block().ops:
            exe.run(startup)
        for parameter in main.all_parameters():
            tensor = scope.find_var(parameter.name).get_tensor()
            tensor.set(wave(*parameter.shape), place)
        fed = {
            key: fluid.create_lod_tensor(value[0], value[1], place)
            if isinstance(value, tuple)
            else value
            for key, value in feed.items()
        }
        found = exe.run(main, feed=fed, fetch_list=fetches, return_numpy=False)
    names = [each if isinstance(each, str) else each.name for each in fetches]
    # Whether a gradient has a LoD differs from operator to operator there.
    lods = [
        [] if name.endswith("@GRAD") else tensor.lod()
        for name, tensor in zip(names, found)  # noqa: B905  Python 3.7
    ]
    return [np.array(tensor) for tensor in found], lods


def data(fluid, name, array, lod_level=0, stop_gradient=False, batch=False):
    shape = [None, *array.shape[1:]] if lod_level or batch else list(array.shape)
    made = fluid.data(name, shape, str(array.dtype), lod_level)
    made.stop_gradient = stop_gradient
    return made


def with_gradients(fluid, out, inputs):
    """out, and the gradients of a weighted sum of it, by inputs and by all parameters."""
    layers = fluid.layers
    flat = layers.reshape(out, [-1, 1])
    loss = layers.reduce_sum(layers.square(flat + 0.5))
    pairs = fluid.backward.append_backward(loss)
    made = [gradient for _, gradient in sorted(pairs, key=lambda pair: pair[0].name)]
    return [out, *made, *[f"{variable.name}@GRAD" for variable in inputs]]


X = wave(3, 4)


@case
def while_doubles_until_large(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    total = layers.assign(x)
    i = layers.fill_constant([1], "int64", 0)
    limit = layers.fill_constant([1], "int64", 4)
    condition = layers.less_than(i, limit)
    with layers.While(condition).block():
        layers.assign(layers.tanh(total * 1.5 + x), total)
        layers.increment(i)
        layers.less_than(i, limit, cond=condition)
    return {"x": X}, [total, i]


@case
def while_with_arrays_and_gradients(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    i = layers.fill_constant([1], "int64", 0)
    i.stop_gradient = True
    limit = layers.fill_constant([1], "int64", 3)
    array = layers.array_write(x, i)
    condition = layers.less_than(i, limit)
    with layers.While(condition).block():
        previous = layers.array_read(array, i)
        new = layers.fc(previous, 4, act="tanh", param_attr="w", bias_attr="b")
        layers.increment(i)
        layers.array_write(new, i, array)
        layers.less_than(i, limit, cond=condition)
    out = layers.array_read(array, i)
    return {"x": X}, [*with_gradients(fluid, out, [x]), layers.array_length(array)]


@case
def while_loop_of_two(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    i = layers.fill_constant([1], "int64", 0)

    def body(i, y):
        return [i + 1, y * 2.0 + 1.0]

    i, y = layers.while_loop(lambda i, _: layers.less_than(i, i * 0 + 3), body, [i, x * 1.0])
    return {"x": X}, [i, y]


@case
def cond_takes_one_branch(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    a = layers.fill_constant([1], "float32", 0.1)
    b = layers.fill_constant([1], "float32", 0.2)
    out, second = layers.cond(
        layers.less_than(a, b),
        lambda: (layers.fc(x, 2, param_attr="w1", bias_attr="b1"), x + 1.0),
        lambda: (layers.fc(x, 2, param_attr="w2", bias_attr="b2"), x - 1.0),
    )
    return {"x": X}, [second, *with_gradients(fluid, out, [x])[:4]]


@case
def case_and_switch_case(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    small = layers.fill_constant([1], "float32", 0.1)
    large = layers.fill_constant([1], "float32", 0.3)
    index = layers.fill_constant([1], "int32", 2)
    first = layers.case(
        [
            (layers.less_than(large, small), lambda: x),
            (layers.less_than(small, large), lambda: x * 2.0),
        ],
        default=lambda: x * 3.0,
    )
    second = layers.switch_case(
        index, {1: lambda: x + 1.0, 2: lambda: x + 2.0}, default=lambda: x + 3.0
    )
    third = layers.switch_case(index, [lambda: x - 1.0, lambda: x - 2.0])
    return {"x": X}, [first, second, third]


@case
def switch_writes_a_rate(fluid):
    layers = fluid.layers
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    step = data(fluid, "step", np.array([7], "int64"), stop_gradient=True)
    with layers.Switch() as switch:
        with switch.case(layers.less_than(step, layers.fill_constant([1], "int64", 5))):
            layers.assign(layers.fill_constant([1], "float32", 1.0), rate)
        with switch.case(layers.less_than(step, layers.fill_constant([1], "int64", 10))):
            layers.assign(layers.cast(step, "float32") * 0.5, rate)
        with switch.default():
            layers.assign(layers.fill_constant([1], "float32", 3.0), rate)
    return {"step": np.array([7], "int64")}, [rate]


@case
def if_else_by_rows(fluid):
    layers = fluid.layers
    array = wave(5, 2)
    x = data(fluid, "x", array)
    limit = layers.fill_constant([5, 1], "float32", 0.0)
    branch = layers.IfElse(layers.less_than(layers.slice(x, [1], [0], [1]), limit))
    with branch.true_block():
        branch.output(layers.fc(branch.input(x), 2, param_attr="w1", bias_attr=False))
    with branch.false_block():
        branch.output(branch.input(x) * 3.0)
    return {"x": array}, with_gradients(fluid, branch()[0], [x])


@case
def static_rnn_with_memory(fluid):
    layers = fluid.layers
    array = wave(4, 2, 3)
    x = data(fluid, "x", array)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        memory = rnn.memory(shape=[-1, 5], batch_ref=word, init_value=0.25)
        hidden = layers.fc([word, memory], 5, act="tanh", param_attr=["w1", "w2"], bias_attr="b")
        rnn.update_memory(memory, hidden)
        rnn.step_output(hidden)
    return {"x": array}, with_gradients(fluid, rnn(), [x])


@case
def static_rnn_with_two_outputs(fluid):
    layers = fluid.layers
    array, first = wave(3, 2, 2), wave(2, 2)
    x, init = data(fluid, "x", array), data(fluid, "init", first)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        memory = rnn.memory(init=init)
        new = layers.elementwise_mul(memory, word) + 1.0
        rnn.update_memory(memory, new)
        rnn.output(new, layers.relu(word))
    one, other = rnn()
    both = layers.concat([one, other], axis=2)
    return {"x": array, "init": first}, with_gradients(fluid, both, [x, init])


SEQUENCES = (wave(6, 3), [[1, 3, 2]])


@case
def dynamic_rnn_over_sequences(fluid):
    layers = fluid.layers
    x = data(fluid, "x", SEQUENCES[0], 1)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(x)
        memory = rnn.memory(shape=[4], value=0.5)
        hidden = layers.fc([word, memory], 4, act="tanh", param_attr=["w1", "w2"], bias_attr="b")
        rnn.update_memory(memory, hidden)
        rnn.output(hidden)
    return {"x": SEQUENCES}, with_gradients(fluid, rnn(), [x])


@case
def dynamic_rnn_with_static_input_and_init(fluid):
    layers = fluid.layers
    first = wave(3, 3)
    x, init = data(fluid, "x", SEQUENCES[0], 1), data(fluid, "init", first)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(x)
        whole = rnn.static_input(x)
        memory = rnn.memory(init=init, need_reorder=True)
        pooled = layers.sequence_pool(whole, "sum")
        hidden = layers.tanh(word + memory * 0.5 + pooled)
        rnn.update_memory(memory, hidden)
        rnn.output(hidden, word)
    out, words = rnn()
    feed = {"x": SEQUENCES, "init": first}
    return feed, [words, *with_gradients(fluid, out, [x, init])]


@case
def arrays_to_tensors(fluid):
    layers = fluid.layers
    x = data(fluid, "x", X)
    i = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, i)
    layers.array_write(x * 2.0, layers.fill_constant([1], "int64", 1), array)
    beside, sizes = layers.tensor_array_to_tensor(array, axis=1)
    stacked, _ = layers.tensor_array_to_tensor(array, axis=0, use_stack=True)
    return {"x": X}, [beside, sizes, stacked, layers.array_length(array), layers.is_empty(x)]


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
