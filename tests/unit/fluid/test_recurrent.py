"""Recurrent layers against what PaddlePaddle 1.8.5 computed."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError

RECORDED = {
    (False, False): [
        [
            0.15298,
            0.01295,
            0.00791,
            0.18096,
            -0.24741,
        ],
        [
            0.05467,
            0.03019,
            0.02332,
            -0.00206,
            0.01437,
        ],
        [
            0.63507,
            0.40576,
            0.19483,
            -0.008,
            -0.47008,
        ],
        [
            0.05466,
            -0.00026,
            0.00216,
            0.0,
            -0.15551,
        ],
    ],
    (False, True): [
        [
            0.14108,
            0.00504,
            0.02908,
            0.1769,
            -0.41686,
        ],
        [
            -0.01541,
            -0.06388,
            -0.06548,
            0.00684,
            0.10265,
        ],
        [
            -0.7877,
            -0.52318,
            -0.22389,
            0.01923,
            -1.14757,
        ],
        [
            -0.05746,
            -0.00064,
            -0.00138,
            0.0,
            -0.49663,
        ],
    ],
    (True, False): [
        [
            0.34772,
            0.13248,
            0.14145,
            0.17847,
            -0.073,
        ],
        [
            -0.01703,
            0.16787,
            0.02035,
            0.0016,
            0.04304,
        ],
        [
            0.62345,
            0.53359,
            0.18359,
            0.00274,
            -0.29989,
        ],
        [
            -0.05004,
            0.00389,
            -0.00772,
            0.01112,
            -0.03954,
        ],
    ],
    (True, True): [
        [
            0.29779,
            0.08746,
            0.07476,
            0.16674,
            -0.14923,
        ],
        [
            -0.00479,
            -0.08327,
            -0.03063,
            0.00273,
            0.20598,
        ],
        [
            -0.81681,
            -0.36968,
            -0.21451,
            0.00698,
            -1.46092,
        ],
        [
            0.01869,
            -0.00235,
            0.0035,
            0.0084,
            -0.55714,
        ],
    ],
}
"""(is_reverse, origin_mode) -> elements 0, 1, 2, 5 and the last of hidden, w, b and x gradients."""


@pytest.mark.parametrize(("is_reverse", "origin_mode"), RECORDED)
def test_a_gru_walks_along_sequences_as_the_original(is_reverse: bool, origin_mode: bool) -> None:
    random = np.random.RandomState(1)
    given, weight, bias = (
        random.uniform(-1, 1, shape).astype("float32").round(3)
        for shape in ((6, 9), (3, 9), (1, 9))
    )
    x = fluid.data("x", [None, 9], lod_level=1)
    x.stop_gradient = False
    attrs = {
        f"{name}_attr": fluid.ParamAttr(
            name=name, initializer=fluid.initializer.NumpyArrayInitializer(array)
        )
        for name, array in (("param", weight), ("bias", bias))
    }
    hidden = fluid.layers.dynamic_gru(x, 3, **attrs, is_reverse=is_reverse, origin_mode=origin_mode)
    fluid.backward.append_backward(fluid.layers.reduce_sum(fluid.layers.square(hidden)))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found = exe.run(
        feed={"x": fluid.create_lod_tensor(given, [[2, 1, 3]])},
        fetch_list=[hidden, "param@GRAD", "bias@GRAD", "x@GRAD"],
        return_numpy=False,
    )
    assert (hidden.name, found[0].lod()) == ("gru_0.tmp_0", [[0, 2, 3, 6]])
    for tensor, expected in zip(found, RECORDED[is_reverse, origin_mode], strict=True):
        picked = tensor.numpy().reshape(-1)[[0, 1, 2, 5, -1]]
        np.testing.assert_allclose(picked, expected, atol=2e-5)


def test_the_input_of_a_gru_must_be_three_times_as_wide() -> None:
    with pytest.raises(ProgramError, match="3 [*] size = 12"):
        fluid.layers.dynamic_gru(fluid.data("x", [None, 9], lod_level=1), 4)
