"""Updates and learning rates against what PaddlePaddle 1.8.5 computed: four steps from W by G."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

W = np.array([0.3, -0.2, 0.1], np.float32)
G = np.array([[0.5, -1.0, 2.0], [0.1, 0.3, -0.7], [-1.5, 0.0, 0.4], [0.2, 0.2, 0.2]], np.float32)

optimizer = fluid.optimizer
L = fluid.layers

KINDS: dict[str, tuple[Callable[[], Any], list[float]]] = {
    "sgd": (lambda: optimizer.SGD(0.1), [0.36999997, -0.14999999, -0.09000001]),
    "sgd_l2": (
        lambda: optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1)),
        [0.35836282, -0.1444923, -0.08899321],
    ),
    "sgd_l1": (
        lambda: optimizer.SGD(0.1, regularization=fluid.regularizer.L1Decay(0.1)),
        [0.33000001, -0.11, -0.06999999],
    ),
    "momentum": (lambda: optimizer.Momentum(0.1, 0.9), [0.36594999, 0.04259999, -0.49409997]),
    "nesterov": (
        lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
        [0.42935503, 0.06833998, -0.62468994],
    ),
    "lars": (lambda: optimizer.LarsMomentum(0.1, 0.9), [0.30000576, -0.20000499, 0.09994015]),
    "adagrad": (lambda: optimizer.Adagrad(0.1), [0.26254326, -0.14754926, 0.00525038]),
    "adagrad_init": (
        lambda: optimizer.Adagrad(0.1, initial_accumulator_value=0.1),
        [0.27937984, -0.15018815, 0.00640879],
    ),
    "adadelta": (
        lambda: optimizer.Adadelta(0.1, epsilon=1e-3),
        [0.2948317, -0.103417, -0.0901608],
    ),
    "decayed": (lambda: optimizer.DecayedAdagrad(0.1), [0.13070416, 0.02523845, -0.32736078]),
    "adam": (lambda: optimizer.Adam(0.1, epsilon=1e-3), [0.19522455, -0.01423556, -0.11556937]),
    "adamax": (lambda: optimizer.Adamax(0.1), [0.18044132, -0.04008197, -0.07583313]),
    "rmsprop": (
        lambda: optimizer.RMSProp(0.1, momentum=0.5),
        [-0.11522793, 0.31787705, -0.64877576],
    ),
    "rmsprop_c": (
        lambda: optimizer.RMSProp(0.1, centered=True),
        [0.11958922, 0.03515065, -0.33971155],
    ),
    "ftrl": (lambda: optimizer.Ftrl(0.1, l1=0.1, l2=0.2), [0.23533477, -0.13489695, 0.00052126]),
    "lamb": (lambda: optimizer.LambOptimizer(0.1), [0.28559747, -0.13853863, 0.02150087]),
    "lookahead": (
        lambda: optimizer.LookaheadOptimizer(optimizer.SGD(0.1), alpha=0.5, k=3),
        [0.325, -0.185, -0.005],
    ),
    "clip_value": (
        lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.5)),
        [0.26999998, -0.2, 0.04],
    ),
    "clip_norm": (
        lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.5)),
        [0.31089139, -0.21770656, 0.06903941],
    ),
    "clip_global": (
        lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)),
        [0.31089139, -0.21770656, 0.06903941],
    ),
    "exp_decay": (
        lambda: optimizer.SGD(L.exponential_decay(0.1, 2, 0.5)),
        [0.31085786, -0.12828428, -0.0775736],
    ),
    "exp_stairs": (
        lambda: optimizer.SGD(L.exponential_decay(0.1, 2, 0.5, staircase=True)),
        [0.30500001, -0.14, -0.06000001],
    ),
    "nat_decay": (
        lambda: optimizer.SGD(L.natural_exp_decay(0.1, 2, 0.5)),
        [0.32374427, -0.13281135, -0.0791925],
    ),
    "inv_decay": (
        lambda: optimizer.SGD(L.inverse_time_decay(0.1, 2, 0.5)),
        [0.33057144, -0.13542856, -0.08209524],
    ),
    "poly": (
        lambda: optimizer.SGD(L.polynomial_decay(0.1, 2, 0.01, 2.0)),
        [0.25974998, -0.11175, -0.08325],
    ),
    "poly_cycle": (
        lambda: optimizer.SGD(L.polynomial_decay(0.1, 2, 0.01, 2.0, cycle=True)),
        [0.25862497, -0.112875, -0.084375],
    ),
    "piecewise": (
        lambda: optimizer.SGD(L.piecewise_decay([1, 3], [0.1, 0.05, 0.01])),
        [0.31799999, -0.117, -0.087],
    ),
    "noam": (lambda: optimizer.SGD(L.noam_decay(64, 2)), [0.36481729, -0.19482233, 0.03211598]),
    "cosine": (
        lambda: optimizer.SGD(L.cosine_decay(0.1, 2, 4)),
        [0.35096192, -0.14707106, -0.08121321],
    ),
    "warmup": (
        lambda: optimizer.SGD(L.linear_lr_warmup(0.1, 3, 0.01, 0.1)),
        [0.37600002, -0.22199999, 0.05999999],
    ),
}

KEPT = {
    "sgd": ["learning_rate_0", "w"],
    "momentum": ["learning_rate_0", "w", "w_velocity_0"],
    "adagrad": ["learning_rate_0", "w", "w_moment_0"],
    "adadelta": ["learning_rate_0", "w", "w__avg_squared_grad_0", "w__avg_squared_update_0"],
    "adam": [
        "learning_rate_0",
        "w",
        "w_beta1_pow_acc_0",
        "w_beta2_pow_acc_0",
        "w_moment1_0",
        "w_moment2_0",
    ],
    "adamax": ["learning_rate_0", "w", "w_beta1_pow_acc_0", "w_inf_norm_0", "w_moment_0"],
    "rmsprop": ["learning_rate_0", "w", "w_mean_grad_0", "w_mean_square_0", "w_momentum_0"],
    "ftrl": ["learning_rate_0", "w", "w_linear_0", "w_squared_0"],
    "lookahead": [
        "learning_rate_0",
        "lookahead_alpha",
        "lookahead_k",
        "lookahead_step",
        "w",
        "w@SLOW",
    ],
    "exp_decay": ["@LR_DECAY_COUNTER@", "w"],
}
"""Names that 1.8.5 gives to persistent variables."""


def trained(kind: str) -> tuple[np.ndarray, set[str]]:
    """Return the parameter after the steps, and the names of persistable variables."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(scope),
        fluid.unique_name.guard(),
    ):
        x = fluid.data("x", [None, 3])
        first = fluid.initializer.NumpyArrayInitializer(W)
        w = L.create_parameter([3], "float32", name="w", default_initializer=first)
        loss = L.reduce_sum(L.elementwise_mul(x, w, axis=1))
        KINDS[kind][0]().minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for gradient in G:
            exe.run(main, feed={"x": gradient[None]})
        value = np.array(scope.find_var("w").get_tensor())
    return value, {variable.name for variable in main.list_vars() if variable.persistable}


@pytest.mark.parametrize("kind", KINDS)
def test_update_equals_the_original(kind: str) -> None:
    value, kept = trained(kind)
    np.testing.assert_allclose(value, KINDS[kind][1], atol=2e-6)
    if kind in KEPT:
        assert kept == set(KEPT[kind])


@pytest.mark.parametrize(
    "kind",
    [
        *("sgd", "sgd_l2", "momentum", "adagrad", "adam", "ftrl"),
        *("rmsprop", "rmsprop_c", "adadelta", "lars", "lamb"),
    ],
)
def test_rows_of_a_table_are_updated_as_plain_parameters_are(kind: str) -> None:
    """One id in each step, so that every row has a gradient each time."""
    make = KINDS[kind][0] if kind != "adam" else partial(fluid.optimizer.Adam, 0.1, lazy_mode=True)
    values = {}
    for is_sparse in (False, True):
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(main, startup), fluid.scope_guard(scope):
            x, ids = fluid.data("x", [None, 3]), fluid.data("ids", [None], "int64")
            first = fluid.initializer.NumpyArrayInitializer(W[None])
            attr = fluid.ParamAttr(name="w", initializer=first)
            rows = fluid.embedding(ids, [1, 3], is_sparse=is_sparse, param_attr=attr)
            loss = L.reduce_sum(L.elementwise_mul(x, rows))
            make().minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            for gradient in G:
                exe.run(main, feed={"x": gradient[None], "ids": np.zeros(1, np.int64)})
            values[is_sparse] = np.array(scope.find_var("w").get_tensor())
    tolerance = 2e-2 if kind == "adam" else 1e-6  # the table adds epsilon where torch does
    np.testing.assert_allclose(values[True], values[False], atol=tolerance)


def test_lamb_leaves_excluded_parameters_without_weight_decay() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = L.mean(L.fc(fluid.data("x", [None, 5]), 3))
        lamb = optimizer.Lamb(
            0.1, exclude_from_weight_decay_fn=lambda parameter: ".b_" in parameter.name
        )
        lamb.minimize(loss)
        ops = fluid.default_main_program().global_block().ops
        decays = {op.input("Param")[0]: op.attr("weight_decay") for op in ops if op.type == "lamb"}
    assert sorted(decays.values()) == [0.0, 0.01]
    assert all((".b_" in name) == (decay == 0) for name, decay in decays.items())
