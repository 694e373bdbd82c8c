"""Each layer compared with torch: values, gradients, and the inferred shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.fluid.layer_cases import CASES, Case

from sparsefleet import fluid

TOLERANCE = 1e-5


def run_case(case: Case) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return the output variable, its value, gradients by input, and the weights of the sum."""
    main, startup = fluid.Program(), fluid.Program()
    scope = fluid.Scope()
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        variables = []
        for name, array in case.inputs.items():
            lod_level = 1 if name in case.lod else 0
            shape = array.shape if name in case.whole else [None, *array.shape[1:]]
            variable = fluid.data(name, shape, str(array.dtype), lod_level)
            variable.stop_gradient = array.dtype != np.float32
            variables.append(variable)
        out = case.build(fluid.layers, *variables)
        weights = fluid.data("weights", out.shape, out.dtype)
        loss = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(out, weights))
        floats = [variable for variable in variables if variable.dtype == "float32"]
        gradients = fluid.gradients(loss, floats)
        exe = fluid.Executor(fluid.CPUPlace())
        if startup.global_block().ops:
            exe.run(startup)
        feed = {
            name: fluid.create_lod_tensor(array, [case.lod[name]]) if name in case.lod else array
            for name, array in case.inputs.items()
        }
        (value,) = exe.run(main.prune([out], feeds=list(feed)), feed, [out], return_numpy=False)
        given = np.arange(1, value.numpy().size + 1, dtype=value.numpy().dtype)
        feed["weights"] = given.reshape(value.shape())
        wanted = [gradient for gradient in gradients if gradient is not None]
        found = exe.run(main, feed, wanted, return_numpy=False)
    names = [v.name for v, g in zip(floats, gradients, strict=True) if g is not None]
    by_name = {name: tensor.numpy() for name, tensor in zip(names, found, strict=True)}
    return out, value.numpy(), by_name, feed["weights"]


@pytest.mark.parametrize("name", CASES)
def test_layer_computes_what_torch_does_with_its_gradients(name: str) -> None:
    case = CASES[name]
    out, value, gradients, weights = run_case(case)
    tensors = {key: torch.from_numpy(array.copy()) for key, array in case.inputs.items()}
    for tensor in tensors.values():
        tensor.requires_grad_(tensor.dtype is torch.float32)
    expected = case.expected(*tensors.values())
    assert value.shape == tuple(expected.shape)
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)
    assert str(value.dtype) == out.dtype
    fits = [promised in (-1, size) for promised, size in zip(out.shape, value.shape, strict=True)]
    assert all(fits), f"promised {out.shape}, came {value.shape}"
    (expected * torch.from_numpy(weights)).sum().backward()
    for key, gradient in gradients.items():
        wanted = tensors[key].grad
        wanted = torch.zeros_like(tensors[key]) if wanted is None else wanted
        np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-4, atol=1e-4, err_msg=key)


def test_arrays_are_taken_where_fluid_takes_them() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        signs = fluid.layers.sign(np.array([3, 0, -2], "float32"))
        matrix = fluid.layers.diag(np.array([3, 4], "int32"))
        found = fluid.Executor().run(fluid.default_main_program(), fetch_list=[signs, matrix])
    assert found[0].tolist() == [1, 0, -1]
    assert found[1].tolist() == [[3, 0], [0, 4]]


def test_an_affine_grid_has_the_batch_of_its_matrices() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        grid = fluid.layers.affine_grid(fluid.data("theta", [None, 2, 3]), [5, 3, 4, 6])
        feed = {"theta": np.ones((2, 2, 3), "float32")}
        (found,) = fluid.Executor().run(fluid.default_main_program(), feed=feed, fetch_list=[grid])
    assert found.shape == (2, 4, 6, 2)
