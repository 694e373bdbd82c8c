"""Recurrent layers against what PaddlePaddle 1.8.5 computed."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError

RECORDED = {
    (False, False): [
        [
            0.1529799997806549,
            0.01295000035315752,
            0.007910000160336494,
            0.18095999956130981,
            -0.24740999937057495,
        ],
        [
            0.054669998586177826,
            0.0301900003105402,
            0.023320000618696213,
            -0.0020600000862032175,
            0.01436999998986721,
        ],
        [
            0.6350700259208679,
            0.4057599902153015,
            0.1948300004005432,
            -0.00800000037997961,
            -0.4700799882411957,
        ],
        [
            0.054659999907016754,
            -0.00026000000070780516,
            0.00215999991632998,
            0.0,
            -0.15550999343395233,
        ],
    ],
    (False, True): [
        [
            0.14108000695705414,
            0.005040000192821026,
            0.029079999774694443,
            0.1768999993801117,
            -0.41686001420021057,
        ],
        [
            -0.015410000458359718,
            -0.06387999653816223,
            -0.06548000127077103,
            0.006839999929070473,
            0.1026500016450882,
        ],
        [
            -0.7876999974250793,
            -0.5231800079345703,
            -0.2238900065422058,
            0.01923000067472458,
            -1.147570013999939,
        ],
        [
            -0.0574599988758564,
            -0.0006399999838322401,
            -0.0013800000306218863,
            0.0,
            -0.4966300129890442,
        ],
    ],
    (True, False): [
        [
            0.3477199971675873,
            0.13247999548912048,
            0.14145000278949738,
            0.17847000062465668,
            -0.0729999989271164,
        ],
        [
            -0.017030000686645508,
            0.16787000000476837,
            0.020349999889731407,
            0.0015999999595806003,
            0.04303999990224838,
        ],
        [
            0.623449981212616,
            0.5335900187492371,
            0.18358999490737915,
            0.002739999908953905,
            -0.29989001154899597,
        ],
        [
            -0.050039999186992645,
            0.0038900000508874655,
            -0.007720000110566616,
            0.011119999922811985,
            -0.03954000025987625,
        ],
    ],
    (True, True): [
        [
            0.297789990901947,
            0.087459996342659,
            0.07475999742746353,
            0.16674000024795532,
            -0.1492300033569336,
        ],
        [
            -0.0047900001518428326,
            -0.08326999843120575,
            -0.030629999935626984,
            0.002730000065639615,
            0.20598000288009644,
        ],
        [
            -0.8168100118637085,
            -0.3696799874305725,
            -0.2145099937915802,
            0.00698000006377697,
            -1.460919976234436,
        ],
        [
            0.018689999356865883,
            -0.0023499999660998583,
            0.0035000001080334187,
            0.00839999970048666,
            -0.5571399927139282,
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
