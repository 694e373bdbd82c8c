"""Operators fused with the activation after them: the same results, fewer values kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.collective import module_preparation
from sparsefleet.fluid.lowering.fusion import fused_operators
from sparsefleet.fluid.operators import fused

L = fluid.layers


@pytest.fixture(autouse=True)
def own_kernels() -> Iterator[None]:
    """Clear the cache of compiled functions for each test."""
    for made in (fused._add_kernels, fused._norm_kernels, module_preparation.warn_fusion_is_off):
        made.cache_clear()
    yield
    for made in (fused._add_kernels, fused._norm_kernels, module_preparation.warn_fusion_is_off):
        made.cache_clear()


@pytest.fixture
def compiled_functions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls of torch.compile; return the function unchanged."""
    asked: list[str] = []

    def compile_nothing(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        assert dynamic
        asked.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr(fused, "COMPILE_AFTER_S", 0.0)
    monkeypatch.setattr(fused, "can_compile", lambda: True)
    return asked


def network(data_layout: str = "NCHW") -> Any:
    """A residual block, twice."""
    hidden = fluid.data("x", [None, 3, 6, 6] if data_layout == "NCHW" else [None, 6, 6, 3])
    channels = {"num_filters": 3, "filter_size": 3, "padding": 1, "data_format": data_layout}
    for act in ("relu", "tanh"):
        again = L.batch_norm(L.conv2d(hidden, **channels), act=act, data_layout=data_layout)
        hidden = L.elementwise_add(hidden, again, act=act)
    return L.mean(L.square(hidden))


def train(is_fused: bool, data_layout: str = "NCHW", mixed: bool = False) -> dict[str, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        loss = network(data_layout)
        optimizer: Any = fluid.optimizer.Momentum(0.1, 0.9)
        if mixed:
            optimizer = fluid.contrib.mixed_precision.decorate(optimizer)
        optimizer.minimize(loss)
        strategy = fluid.BuildStrategy()
        strategy.fuse_bn_act_ops = strategy.fuse_elewise_add_act_ops = is_fused
        program = fluid.CompiledProgram(main, strategy)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        shape = (5, 3, 6, 6) if data_layout == "NCHW" else (5, 6, 6, 3)
        feed = {"x": np.random.default_rng(0).normal(size=shape).astype("float32")}
        for _ in range(3):
            exe.run(program, feed, [loss])
        return {
            variable.name: np.array(fluid.global_scope().find_var(variable.name).get_tensor())
            for variable in main.list_vars()
            if variable.persistable
        }


@pytest.mark.parametrize("data_layout", ["NCHW", "NHWC"])
@pytest.mark.usefixtures("compiled_functions")
def test_results_are_those_of_the_operators_apart(data_layout: str) -> None:
    apart, together = train(False, data_layout), train(True, data_layout)
    for name, value in apart.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("compiled_functions")
def test_in_half_precision_statistics_stay_float32() -> None:
    apart, together = train(False, mixed=True), train(True, mixed=True)
    for name, value in apart.items():
        np.testing.assert_allclose(together[name], value, rtol=0.05, atol=0.02, err_msg=name)


def test_one_function_per_pass_is_compiled_for_all_places(compiled_functions: list[str]) -> None:
    train(True)
    assert sorted(compiled_functions) == ["<lambda>"] * 4 + ["backward"] * 2 + ["forward"] * 2


@pytest.mark.parametrize("act", list(fused.FUSED_ACTIVATIONS))
@pytest.mark.parametrize("kind", ["elementwise_add", "batch_norm"])
def test_slopes_follow_from_the_result(
    kind: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "can_compile", lambda: False)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 2, dtype=torch.float64, generator=draw, requires_grad=True)
    setting = {"elu": 0.7, "leaky_relu": 0.1, "relu6": 0.8}.get(act, 0.0)
    if kind == "elementwise_add":
        y = torch.randn(3, dtype=torch.float64, generator=draw, requires_grad=True)
        function = fused.fused_elemwise_activation
        assert torch.autograd.gradcheck(
            lambda *given: function(*given, axis=1, act=act, number=setting), (x, y)
        )
        return
    states = [torch.rand(3, dtype=torch.float64, generator=draw) + 0.5 for _ in range(4)]
    trained = (x, *(state.requires_grad_() for state in states[:2]))
    for is_test in (False, True):
        assert torch.autograd.gradcheck(
            lambda *given: fused.fused_batch_norm_act(
                *given,
                *states[2:],
                act=act,
                number=setting,
                is_test=is_test,  # noqa: B023
            )[0],
            trained,
        )


def test_what_is_fetched_or_read_elsewhere_is_computed_apart() -> None:
    loss = network()
    program = fluid.default_main_program()
    strategy = fluid.BuildStrategy()
    strategy.fuse_bn_act_ops = True
    fluid.CompiledProgram(program, strategy)
    ops = program.global_block().ops
    between = next(op for op in ops if op.type == "batch_norm").output("Y")[0]
    counts = [
        [op.type for op in fused_operators(program, ops, fetches)].count("fused_batch_norm_act")
        for fetches in ([loss.name], [loss.name, between])
    ]
    assert counts == [2, 1]


def test_without_a_compiler_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module_preparation, "found_compiler", lambda: None)
    with caplog.at_level(logging.WARNING):
        together = train(True)
    for name, value in train(False).items():
        np.testing.assert_allclose(together[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert [record.message for record in caplog.records] == [
        "kernel fusion is off: no C++ compiler was found; training continues without it"
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.skipif(module_preparation.found_compiler() is None, reason="there is no C++ compiler")
def test_compiled_kernels_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "COMPILE_AFTER_S", 0.0)
    apart, together = train(False), train(True)
    for name, value in apart.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_what_runs_briefly_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, compiled_functions: list[str]
) -> None:
    monkeypatch.setattr(fused, "COMPILE_AFTER_S", 60.0)
    kernel = fused._one_kernel(torch.relu)
    assert kernel(torch.tensor([-1.0])).item() == 0.0
    assert compiled_functions == []


def test_a_compiler_that_fails_is_said_once_and_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class CompilerError(Exception):
        pass

    def fail(*_: torch.Tensor) -> None:
        raise CompilerError("no such kernel\nand much more")

    monkeypatch.setattr(fused, "can_compile", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    monkeypatch.setattr(fused, "COMPILE_AFTER_S", 0.0)
    monkeypatch.setattr(fused, "_compiler_error", lambda: CompilerError)
    kernel = fused._one_kernel(torch.relu)
    with caplog.at_level(logging.WARNING):
        assert [kernel(torch.tensor([number])).item() for number in (-1.0, 2.0)] == [0.0, 2.0]
    assert [record.message for record in caplog.records] == [
        "kernel fusion is off: the compiler failed (no such kernel); training continues without it"
    ]
