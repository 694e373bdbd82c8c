"""Loops, branches and arrays."""

from __future__ import annotations

import numpy as np
from tests.unit.fluid.program_cases import case, data, wave, with_gradients

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
def dynamic_rnn_over_sequences_of_sequences(fluid):
    layers = fluid.layers
    rows = (wave(9, 2), [[1, 2, 2], [2, 1, 3, 2, 1]])
    x = data(fluid, "x", rows[0], 2)
    rnn = layers.DynamicRNN()
    with rnn.block():
        sentence = rnn.step_input(x)
        memory = rnn.memory(shape=[2])
        layers.sequence_pool(sentence, "sum")
        pooled = layers.sequence_pool(sentence, "average")
        hidden = layers.tanh(pooled + memory)
        rnn.update_memory(memory, hidden)
        rnn.output(hidden)
    return {"x": rows}, with_gradients(fluid, rnn(), [x])
