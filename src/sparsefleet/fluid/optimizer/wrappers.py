"""Optimizers that wrap another one: gradient merging, look-ahead, recomputation, weight decay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import (
    Operator,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
    unique_name,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, make_plain
from sparsefleet.fluid.optimizer.averages import plain_parameters
from sparsefleet.fluid.optimizer.backward import append_backward
from sparsefleet.fluid.optimizer.clip import GradientClipBase
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = [
    "GradientMergeOptimizer",
    "LookaheadOptimizer",
    "OptimizerWrapper",
    "RecomputeOptimizer",
    "extend_with_decoupled_weight_decay",
]


class OptimizerWrapper(ABC):
    """Wraps an optimizer and replaces its backward pass or updates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Add the backward pass and updates; the returned gradients cover one batch."""
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, pairs), pairs

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Call the optimizer's `backward`."""
        return self._optimizer.backward(
            loss, startup_program, parameter_list, no_grad_set, callbacks
        )

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Pairs
    ) -> list[Operator]:
        """Call `apply_gradients` in the loss's program."""
        assert loss.block is not None
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    @abstractmethod
    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Add the wrapped optimizer's updates, using the transformed gradients."""


class GradientMergeOptimizer(OptimizerWrapper):
    """Updates every k_steps runs, with the merged gradients of the last k_steps runs.

    This is equivalent to a batch k_steps times as large but needs the memory of one batch. Between
    updates, neither parameters nor optimizer state are updated; learning-rate schedules count runs.
    Embeddings with is_sparse=True become dense parameters.

    avg: whether to use the mean of the gradients rather than their sum.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    ...     optimizer = GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k_steps=4)
    ...     len(optimizer.minimize(loss)[1])
    2
    """

    def __init__(self, inner_optimizer: Optimizer, k_steps: int = 1, avg: bool = True) -> None:
        if not hasattr(inner_optimizer, "apply_gradients"):
            raise TypeError(f"GradientMergeOptimizer takes an optimizer, got {inner_optimizer!r}")
        if not isinstance(k_steps, int) or isinstance(k_steps, bool) or k_steps < 1:
            raise ConfigError(
                f"GradientMergeOptimizer: k_steps must be an int >= 1, got {k_steps!r}"
            )
        super().__init__(inner_optimizer)
        self.inner_optimizer, self.k_steps, self.avg = inner_optimizer, k_steps, avg
        self.type = "gradient_merge"

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Add the wrapped optimizer's updates, applied to the merged gradients."""
        if self.k_steps > 1:
            with default_main_program().role_guard("backward"):
                params_grads = self._merged(params_grads)
        return self.inner_optimizer.apply_gradients(params_grads)

    def _merged(self, pairs: Pairs) -> Pairs:
        helper = LayerHelper("gradient_merge")
        main, startup = default_main_program(), default_startup_program()
        sums, merged = [], []
        for parameter, gradient in pairs:
            make_plain(main, startup, parameter.name)
            name = unique_name.generate(f"{parameter.name}@GRAD.merge_sum")
            sums.append(helper.create_state(name, parameter.shape, parameter.dtype))
            name = unique_name.generate(f"{parameter.name}@GRAD.merged")
            block = main.global_block()
            merged.append(
                block.create_var(name, gradient.shape, gradient.dtype, stop_gradient=True)
            )
        step = helper.create_state(unique_name.generate("gradient_merge_step"), [1], "int32")
        helper.append_op(
            "merge_gradients",
            {"X": [gradient for _, gradient in pairs], "Sums": sums, "Step": step},
            {"Out": merged},
            {"k_steps": self.k_steps, "avg": self.avg},
        )
        return [(parameter, out) for (parameter, _), out in zip(pairs, merged, strict=True)]


class LookaheadOptimizer:
    """Look-ahead (Zhang et al. 2019): every k steps, moves slow parameters towards the fast ones
    by a factor alpha.
    """

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, (Optimizer, OptimizerWrapper)):
            raise TypeError(f"LookaheadOptimizer takes an optimizer, got {inner_optimizer!r}")
        if not 0.0 <= alpha <= 1.0 or not isinstance(k, int) or k < 1:
            raise ConfigError(
                f"LookaheadOptimizer: alpha must be in 0..1 and k an int >= 1, got "
                f"{alpha!r} and {k!r}"
            )
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k
        self.type = "lookahead"

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], Pairs]:
        """Minimize with the inner optimizer, then add the slow parameters `<name>@SLOW`."""
        found = self.inner_optimizer.minimize(loss, startup_program)
        assert loss.block is not None
        program = loss.block.program
        startup = startup_program or default_startup_program()
        with program_guard(program, startup), program.role_guard("optimize"):
            self._add_slow_ones(program, startup)
        return found

    def _add_slow_ones(self, program: Program, startup: Program) -> None:
        helper = LayerHelper("lookahead")
        shared: dict[str, Any] = {
            "K": helper.create_state("lookahead_k", [1], "int32", self.k),
            "Alpha": helper.create_state("lookahead_alpha", [1], "float32", self.alpha),
            "Step": helper.create_state("lookahead_step", [1], "int32"),
        }
        step = shared["Step"]
        helper.append_op("increment", {"X": step}, {"Out": step}, {"step": 1.0})
        settings = {"persistable": True, "stop_gradient": True}
        for fast in plain_parameters(program, type(self).__name__):
            for block in (program.global_block(), startup.global_block()):
                slow = block.create_var(f"{fast.name}@SLOW", fast.shape, fast.dtype, **settings)
            startup.global_block().append_op("assign", {"X": fast.name}, {"Out": slow})
            inputs = {"Param": fast, "Slow": slow.name, **shared}
            helper.append_op("lookahead", inputs, {"ParamOut": [fast, slow.name]})


class RecomputeOptimizer(OptimizerWrapper):
    """Wraps an optimizer so that its backward pass keeps only checkpoints.

    Values that the forward pass computes before the last checkpoint are discarded and recomputed
    when the backward pass needs them; results are the same, including dropout.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     hidden = fluid.layers.fc(fluid.data("x", [None, 2]), 3, act="relu")
    ...     loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
    ...     optimizer = RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    ...     optimizer._set_checkpoints([hidden])
    ...     len(optimizer.minimize(loss)[1])
    4
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"RecomputeOptimizer takes an optimizer, got {optimizer!r}")
        super().__init__(optimizer)
        self._checkpoints: Sequence[Variable | str] | None = None

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Add the backward pass and updates.

        grad_clip: replaces the grad_clip of the wrapped optimizer.
        """
        if grad_clip is not None:
            self._optimizer._grad_clip = grad_clip
        return super().minimize(loss, startup_program, parameter_list, no_grad_set)

    def load(self, state_dict: object) -> None:
        """Raise an error, as in Fluid; use `fluid.load` instead."""
        raise NotImplementedError("RecomputeOptimizer has no load(); use fluid.load")

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Set the variables or names to keep."""
        for item in checkpoints:
            if not isinstance(item, (str, Variable)):
                raise TypeError(f"a checkpoint must be a Variable or its name, got {item!r}")
        self._checkpoints = checkpoints

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Add the backward pass; return parameters and their gradients."""
        del startup_program
        if self._checkpoints is None:
            raise AssertionError("RecomputeOptimizer: call _set_checkpoints before minimize")
        chosen = self._parameter_list if parameter_list is None else parameter_list
        return append_backward(loss, chosen, no_grad_set, callbacks, self._checkpoints)

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Apply the gradients with the wrapped optimizer."""
        return self._optimizer.apply_gradients(params_grads)


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return a subclass that also subtracts `coeff * parameter` from each parameter.

    The first argument of the subclass is weight_decay, the coefficient; the keyword argument
    apply_decay_param_fun selects by name which parameters decay.
    """
    if not isinstance(base_optimizer, type) or not issubclass(base_optimizer, Optimizer):
        raise TypeError(
            f"base_optimizer must be a class from fluid.optimizer, got {base_optimizer!r}"
        )

    class OptimizerWithDecoupledWeightDecay(base_optimizer):  # type: ignore[misc, valid-type]
        """The base optimizer, extended with decoupled weight decay."""

        def __init__(
            self,
            weight_decay: float | Variable,
            *args: Any,
            apply_decay_param_fun: Any = None,
            **kwargs: Any,
        ) -> None:
            if not isinstance(weight_decay, (float, Variable)):
                raise TypeError(f"coeff must be a float or a Variable, got {weight_decay!r}")
            super().__init__(*args, **kwargs)
            self._coeff, self._decays = weight_decay, apply_decay_param_fun

        def minimize(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
            startup = args[0] if args else kwargs.get("startup_program")
            pairs = self.backward(loss, *args, **kwargs)
            program = loss.block.program
            before = {}
            with (
                program_guard(program, startup or default_startup_program()),
                default_main_program().role_guard("optimize"),
            ):
                for parameter, _ in pairs:
                    if self._decays is None or self._decays(parameter.name):
                        before[parameter.name] = parameter * self._coeff
            updates = self.apply_optimize(loss, startup, pairs)
            with (
                program_guard(program, startup or default_startup_program()),
                program.role_guard("optimize"),
            ):
                block = program.global_block()
                for parameter, _ in pairs:
                    if parameter.name in before:
                        inputs = {"X": parameter, "Y": before[parameter.name]}
                        out = {"Out": parameter}
                        updates.append(block.append_op("elementwise_sub", inputs, out))
            return updates, pairs

    return OptimizerWithDecoupledWeightDecay
