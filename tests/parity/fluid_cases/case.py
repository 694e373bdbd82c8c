"""A test case of a layer, and its results for any `fluid` with that API.

Also read by Python 3.7: the original runs the same cases (bench/fluid_parity.py).
"""

from __future__ import annotations

import numpy as np

CASES = {}


class Case:
    """inputs: arrays by name, in the order in which `build(fluid, *variables)` takes them.

    lod: lengths of the sequences of an input, a list for each level. whole: inputs are declared
    with all sizes, not with an unknown first one. forward_only: do not compute gradients.
    """

    def __init__(self, build, inputs, lod, whole, forward_only):
        self.build, self.inputs, self.lod = build, inputs, lod
        self.whole, self.forward_only = whole, forward_only


def add(name, inputs, build, lod=None, whole=False, forward_only=False):
    """Register a case."""
    assert name not in CASES, name
    CASES[name] = Case(build, inputs, lod or {}, whole, forward_only)


def floats(*shape, low=-1.0, high=1.0, seed=1):
    return np.random.RandomState(seed).uniform(low, high, shape).astype("float32")


def ints(*shape, high, seed=2, dtype="int64"):
    return np.random.RandomState(seed).randint(0, high, shape).astype(dtype)


def run_case(fluid, case):
    """Return (declared shapes, [name, array, lod] of outputs, gradients and statistics)."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        variables = [_declare(fluid, case, name) for name in case.inputs]
        outs = case.build(fluid, *variables)
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        parameters = [p for p in main.all_parameters() if p.trainable]
        promised = {
            "outputs": [[out.name, list(out.shape), dtype_text(out.dtype)] for out in outs],
            "parameters": [[p.name, list(p.shape)] for p in parameters],
        }
        fetches = [out.name for out in outs]
        if not case.forward_only:
            sources = [v for v in variables if dtype_text(v.dtype) == "float32"] + parameters
            fetches += _gradients(fluid, outs, sources)
    feed = {name: _fed(fluid, case, name) for name in case.inputs}
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for parameter in parameters:
            _set(fluid, parameter)
        found = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
    results = [
        [name, np.array(value), [list(map(int, level)) for level in value.lod()]]
        for name, value in zip(fetches, found)  # noqa: B905  Python 3.7
    ]
    return promised, results


def summary(array):
    """Return a few numbers that identify an array among others of its shape: plain and weighted
    sums.
    """
    flat = np.nan_to_num(np.asarray(array, "float64").reshape(-1))
    waves = np.cos(np.arange(len(flat)) * 1.3)
    return [float(f"{value:.6g}") for value in (flat.sum(), np.abs(flat).sum(), flat.dot(waves))]


def dtype_text(dtype):
    """Return the name of a type, which is an enum in the original."""
    names = {"BOOL": "bool", "INT16": "int16", "INT32": "int32", "INT64": "int64"}
    names.update(FP16="float16", FP32="float32", FP64="float64", UINT8="uint8", INT8="int8")
    text = str(dtype).rpartition(".")[2]
    return names.get(text, text)


def _declare(fluid, case, name):
    array = case.inputs[name]
    shape = list(array.shape) if case.whole else [None, *list(array.shape[1:])]
    levels = len(case.lod.get(name, []))
    variable = fluid.data(name, shape, str(array.dtype), levels)
    variable.stop_gradient = array.dtype != np.float32
    return variable


def _fed(fluid, case, name):
    if name not in case.lod:
        return case.inputs[name]
    return fluid.create_lod_tensor(case.inputs[name], case.lod[name], fluid.CPUPlace())


def _gradients(fluid, outs, sources):
    """Return the names of the gradients of a loss whose gradient differs between elements."""
    layers = fluid.layers
    terms = [
        layers.reduce_sum(out * (out + 0.7)) for out in outs if dtype_text(out.dtype) == "float32"
    ]
    loss = terms[0] if len(terms) == 1 else layers.sums(terms)
    found = fluid.gradients([loss], sources)
    return [gradient.name for gradient in found if gradient is not None]


def _set(fluid, parameter):
    if "batch_s" in parameter.name:  # sums that data_norm keeps
        return
    size = int(np.prod(parameter.shape))
    values = np.sin(np.arange(size) * 1.7 + 0.3).reshape(parameter.shape) * 0.5
    tensor = fluid.global_scope().find_var(parameter.name).get_tensor()
    tensor.set(values.astype("float32"), fluid.CPUPlace())
