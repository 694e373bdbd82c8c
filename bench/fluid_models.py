"""Records inference models that PaddlePaddle 1.8.5 saves, with what it predicts.

    <python with paddlepaddle 1.8.5> bench/fluid_models.py

writes tests/parity/paddle_models_1_8_5.json, which tests/parity/test_paddle_models.py loads. Runs
under Python 3.7.
"""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "parity" / "paddle_models_1_8_5.json"
NUMBERS = np.random.RandomState(0)


def floats(*shape):
    return NUMBERS.uniform(-1, 1, shape).astype("float32")


def words(fluid, lengths):
    ids = NUMBERS.randint(0, 20, (sum(lengths), 1)).astype("int64")
    return fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace())


def pictures(fluid):
    layers = fluid.layers
    x = fluid.data("x", [None, 1, 12, 12])
    y = fluid.nets.simple_img_conv_pool(x, 5, 4, 2, 2, act="relu")
    y = layers.dropout(layers.batch_norm(y), 0.3)
    y = layers.elementwise_add(y, layers.conv2d(y, 5, 3, padding=1), act="relu")
    large = layers.resize_bilinear(layers.conv2d_transpose(y, 2, filter_size=2, stride=2), [5, 5])
    mean = layers.pool2d(y, pool_type="avg", global_pooling=True)
    return {"x": floats(2, 1, 12, 12)}, [layers.fc(mean, 3, act="softmax"), large]


def next_word(fluid):
    layers = fluid.layers
    ids = [fluid.data(f"w{place}", [None, 1], "int64") for place in range(2)]
    rows = [layers.embedding(one, [20, 4], is_sparse=True, param_attr="emb") for one in ids]
    hidden = layers.fc(layers.concat(rows, 1), 8, act="sigmoid")
    feed = {"w0": np.array([[3], [19]]), "w1": np.array([[0], [7]])}
    return feed, [layers.fc(hidden, 20, act="softmax")]


def sentences(fluid):
    layers = fluid.layers
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = layers.embedding(ids, [20, 8])
    steps, _ = layers.dynamic_lstm(layers.fc(rows, 32), 32)
    gated = layers.sequence_last_step(layers.dynamic_gru(layers.fc(rows, 24), 8))
    windows = fluid.nets.sequence_conv_pool(rows, 6, 3, act="tanh", pool_type="sqrt")
    best = layers.sequence_pool(steps, "max")
    feed = {"ids": words(fluid, [4, 2])}
    return feed, [layers.fc([best, gated, windows], 2, act="softmax")]


def tags(fluid):
    layers = fluid.layers
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    right = fluid.data("right", [None, 1], "int64", lod_level=1)
    scores = layers.fc(layers.embedding(ids, [20, 8]), 5)
    attr = fluid.ParamAttr(name="crf")
    layers.linear_chain_crf(scores, right, param_attr=attr)
    return {"ids": words(fluid, [4, 2])}, [layers.crf_decoding(scores, param_attr=attr)]


def loops(fluid):
    layers = fluid.layers
    x = fluid.data("x", [None, 3])
    count, limit = (layers.fill_constant([1], "int64", value) for value in (0, 3))
    total = layers.scale(x, 1.0)
    goes_on = layers.less_than(count, limit)
    with layers.While(goes_on).block():
        layers.assign(layers.elementwise_add(total, layers.relu(x)), total)
        layers.increment(count, 1, in_place=True)
        layers.less_than(count, limit, cond=goes_on)
    small = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 100.0))
    made = layers.cond(small, lambda: layers.scale(total, 2.0), lambda: layers.scale(total, 3.0))
    return {"x": floats(2, 3)}, [made]


def shapes(fluid):
    layers = fluid.layers
    x = fluid.data("x", [None, 4, 6])
    weights = layers.softmax(layers.matmul(x, layers.transpose(x, [0, 2, 1])))
    mean = layers.squeeze(layers.reduce_mean(weights, [1], keep_dim=True), [1])
    wide = layers.expand(layers.unsqueeze(mean, [2]), [1, 1, 3])
    flat = layers.flatten(layers.slice(layers.stack([wide, wide], 1), [1], [0], [1]))
    half = layers.split(layers.layer_norm(flat), 2, dim=1)[0]
    curved = layers.clip(half, -1, 1) + layers.leaky_relu(half) * layers.sqrt(layers.abs(half))
    order = layers.cast(layers.argsort(curved)[1], "float32")
    unit = layers.l2_normalize(flat, 1)
    return {"x": floats(2, 4, 6)}, [layers.topk(flat, 2)[0], curved, order, unit]


def kept(folder):
    """Files as text; operators without the call stacks that hold paths of this machine."""
    from paddle.fluid.proto import framework_pb2

    found = {}
    for file in sorted(Path(folder).iterdir()):
        data = file.read_bytes()
        if file.name == "__model__":
            program = framework_pb2.ProgramDesc.FromString(data)
            for block in program.blocks:
                for op in block.ops:
                    attrs = [attr for attr in op.attrs if attr.name != "op_callstack"]
                    del op.attrs[:]
                    op.attrs.extend(attrs)
            data = program.SerializeToString()
        found[file.name] = base64.b64encode(zlib.compress(data, 9)).decode()
    return found


def record(fluid, build, params):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with ExitStack() as stack:
        for guard in (
            fluid.program_guard(main, startup),
            fluid.unique_name.guard(),
            fluid.scope_guard(fluid.Scope()),
        ):
            stack.enter_context(guard)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        feed, targets = build(fluid)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_inference_model(
            folder, list(feed), targets, exe, main, params_filename=params
        )
        program, _, fetches = fluid.io.load_inference_model(folder, exe, params_filename=params)
        found = exe.run(program, feed=feed, fetch_list=fetches, return_numpy=False)
        lods = {
            name: value.recursive_sequence_lengths()
            for name, value in feed.items()
            if not isinstance(value, np.ndarray)
        }
        return {
            "files": kept(folder),
            "params": params,
            "feed": {name: np.array(value).tolist() for name, value in feed.items()},
            "types": {name: str(np.array(value).dtype) for name, value in feed.items()},
            "lods": lods,
            "predicted": [np.array(value).round(6).tolist() for value in found],
        }


def main():
    import paddle.fluid as fluid

    models = {
        "pictures": (pictures, "params"),
        "next_word": (next_word, None),
        "sentences": (sentences, "params"),
        "tags": (tags, None),
        "loops": (loops, None),
        "shapes": (shapes, None),
    }
    lines = [
        json.dumps(name) + ": " + json.dumps(record(fluid, build, params))
        for name, (build, params) in models.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
