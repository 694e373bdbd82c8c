"""Programs for any `fluid` that has the API: here, and the original, which recorded its results.

`scripts/record_fluid_values.py` runs them with the original.
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
    """Return the fetched values as arrays; parameters are set to waves first."""
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
    # In the original, whether a gradient has a LoD depends on the operator.
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
    """Return out, and the gradients of its weighted sum by inputs and all parameters."""
    layers = fluid.layers
    flat = layers.reshape(out, [-1, 1])
    loss = layers.reduce_sum(layers.square(flat + 0.5))
    pairs = fluid.backward.append_backward(loss)
    made = [gradient for _, gradient in sorted(pairs, key=lambda pair: pair[0].name)]
    return [out, *made, *[f"{variable.name}@GRAD" for variable in inputs]]
