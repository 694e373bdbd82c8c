"""Seeded programs start with the values of 1.8.5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

# The first values of a parameter of shape [3, 5] in a startup program with random_seed 90, as
# 1.8.5 draws them on a CPU.
RECORDED = [
    (
        fluid.initializer.Uniform(-0.3, 0.7),
        "float32",
        [-0.297977, 0.3529204, -0.1782655, -0.0549851],
    ),
    (
        fluid.initializer.Uniform(-0.3, 0.7),
        "float64",
        [0.3529204, -0.0549851, -0.2279205, 0.5207549],
    ),
    (
        fluid.initializer.Uniform(-1, 1, seed=5),
        "float32",
        [-0.9997752, -0.1496755, -0.9864739, -0.0838872],
    ),
    (fluid.initializer.Xavier(), "float32", [-0.8625214, 0.2648659, -0.6551751, -0.4416471]),
    (
        fluid.initializer.Xavier(uniform=False),
        "float32",
        [-0.1692772, -0.2511196, 0.5286892, -0.2508261],
    ),
    (fluid.initializer.Normal(1.0, 2.0), "float32", [0.3228911, -0.0044782, 3.1147568, -0.0033044]),
    (fluid.initializer.Normal(1.0, 2.0), "float64", [-1.4731736, 2.4832193, 0.7446213, 2.6372538]),
    (
        fluid.initializer.TruncatedNormal(0.5, 2.0),
        "float32",
        [-3.4308984, 1.2488853, -1.6701372, -0.8076217],
    ),
    (fluid.initializer.MSRA(), "float32", [-1.4084916, 0.4325243, -1.0698965, -0.7212067]),
]


def first_values(initializer: Any, dtype: str, shape: Any = (3, 5)) -> Any:
    startup = fluid.Program()
    startup.random_seed = 90
    with fluid.program_guard(fluid.Program(), startup), fluid.scope_guard(fluid.Scope()):
        made = fluid.layers.create_parameter(list(shape), dtype, default_initializer=initializer)
        fluid.Executor().run(startup)
        found = fluid.global_scope().find_var(made.name)
        assert found is not None
        return found.get_tensor().numpy()


@pytest.mark.parametrize(("initializer", "dtype", "wanted"), RECORDED)
def test_a_seeded_parameter_starts_as_in_the_original(
    initializer: Any, dtype: str, wanted: list[float]
) -> None:
    found = first_values(initializer, dtype).ravel()[:4]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_long_parameters_continue_the_sequence_over_blocks() -> None:
    uniform = first_values(fluid.initializer.Uniform(0, 1), "float32", (300, 400))
    state, wanted = 90, []
    for _ in range(uniform.size):
        state = state * 48271 % (2**31 - 1)
        wanted.append(state)
    np.testing.assert_allclose(uniform.ravel(), (np.array(wanted) - 1) / 2**31, atol=1e-6)
    normal = first_values(fluid.initializer.Normal(), "float32", (300, 400))
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01


def test_layers_of_equal_shape_start_equal_in_a_seeded_program() -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        x = fluid.data("x", [2, 3, 4])
        both = [fluid.layers.fc(x, 2, num_flatten_dims=dims) for dims in (-1, 2)]
        exe = fluid.Executor()
        exe.run(startup)
        first, second = exe.run(main, {"x": np.ones((2, 3, 4), "float32")}, both)
    np.testing.assert_array_equal(first, second)
