"""Which operators graphs may call."""

from __future__ import annotations

import pytest

import sparsefleet.serving.export.recorded_graph  # noqa: F401  registers an operator
from sparsefleet.errors import ConfigError
from sparsefleet.serving.export import allow_operators
from sparsefleet.serving.export.graph_operators import why_refused


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.linear.default",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.aten._assert_scalar.default",
        "torch.ops.aten.sym_size.int",
        "torch.ops.aten.random_.from",
        "torch.ops.sparsefleet.look_up.default",
        "torch.ops.higher_order.cond",
        "_operator.floordiv",
        "torch.sym_max",
    ],
)
def test_operators_that_models_need_are_allowed(target: str) -> None:
    assert why_refused(target) is None


@pytest.mark.parametrize(
    "target",
    [
        "",
        "os.system",
        "torch.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.from_file",
        "torch.ops.aten.save.default",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.set_.source_Tensor_storage_offset",
        "torch.ops.aten.max_pool2d_with_indices_backward.default",
        "torch.ops.aten._sparse_coo_tensor_unsafe.default",
        "torch.ops.aten.relu.__call__",
        "torch.ops.aten.__class__.x",
        "torch.ops.sparsefleet.look_up.x",
        "torch.ops.higher_order.triton_kernel_wrapper_functional",
        "torch.ops.profiler._record_function_enter.default",
        "torch.ops.inductor.resize_storage_bytes_.default",
        "_operator.attrgetter",
        "_operator.call",
        "_operator.setitem",
        "math.factorial",
        "torch.sym_not.__globals__",
    ],
)
def test_operators_that_no_model_needs_are_refused(target: str) -> None:
    assert why_refused(target) is not None


def test_permission_for_something_else_than_an_operator_is_an_error() -> None:
    with pytest.raises(ConfigError, match="got the operator 'twice', expected 'library::operator'"):
        allow_operators("twice")
