"""A click network with sequences and a table, compared with PaddlePaddle 1.8.5 step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

RECORDED = {
    "SGD": [
        [2.82572, 1.0, 1.0],
        [2.80256, 0.4, 0.4],
        [2.64, 0.4375, 0.4375],
        [2.49164, 0.50909, 0.53125],
        [2.87735, 0.43956, 0.40625],
        [2.49198, 0.44531, 0.34375],
    ],
    "Adagrad": [
        [2.82572, 1.0, 1.0],
        [2.91669, 0.53333, 0.53333],
        [2.63255, 0.53125, 0.53125],
        [2.67171, 0.47273, 0.40625],
        [2.77437, 0.41758, 0.375],
        [2.21222, 0.48438, 0.53125],
    ],
}
"""Loss, AUC and AUC of the last three batches that 1.8.5 printed, with five digits."""

LENGTHS = ([1, 2, 3, 2], [2, 1, 1, 4])  # lengths of the sequences of both slots


def attr(shape: Sequence[int], name: str | None = None) -> Any:
    """Initial values that need no random numbers."""
    values = np.sin(np.arange(np.prod(shape)) * 1.7) / np.sqrt(shape[0])
    first = fluid.initializer.NumpyArrayInitializer(values.astype("float32").reshape(shape))
    return fluid.ParamAttr(name=name, initializer=first)


def batch(step: int) -> dict[str, Any]:
    feed: dict[str, Any] = {
        "dense": np.cos(np.arange(12) + step).astype("float32").reshape(4, 3),
        "y": ((np.arange(4) + step) % 3 % 2).reshape(4, 1),
    }
    for slot, lengths in enumerate(LENGTHS):
        ids = (np.arange(sum(lengths)) * 7 + step * 3 + slot) % 20
        feed[f"C{slot}"] = fluid.create_lod_tensor(ids.reshape(-1, 1), [lengths])
    return feed


@pytest.mark.parametrize("kind", RECORDED)
def test_loss_and_auc_are_those_of_the_original(kind: str) -> None:
    layers, main, startup = fluid.layers, fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        dense, y = layers.data("dense", [3]), layers.data("y", [1], dtype="int64")
        slots = [layers.data(f"C{i}", [1], dtype="int64", lod_level=1) for i in range(2)]
        rows = [
            layers.sequence_pool(
                layers.embedding(ids, [20, 4], is_sparse=True, param_attr=attr((20, 4), "table")),
                "sum",
            )
            for ids in slots
        ]
        joined = layers.concat([*rows, dense], axis=1)
        hidden = layers.fc(joined, 6, act="relu", param_attr=attr((11, 6)))
        predict = layers.fc(hidden, 2, act="softmax", param_attr=attr((6, 2)))
        loss = layers.reduce_sum(layers.cross_entropy(predict, y))
        auc, batch_auc, _ = layers.auc(predict, y, num_thresholds=2**12, slide_steps=3)
        getattr(fluid.optimizer, kind)(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step, expected in enumerate(RECORDED[kind]):
            found = exe.run(main, batch(step), [loss, auc, batch_auc])
            np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)
