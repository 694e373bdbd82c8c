"""Updates by the gradients of several batches."""

from __future__ import annotations

from sparsefleet.errors import ConfigError
from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Operator, default_main_program, default_startup_program
from sparsefleet.fluid.layer_helper import LayerHelper, make_plain
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs
from sparsefleet.fluid.optimizer.wrapper import OptimizerWrapper

__all__ = ["GradientMergeOptimizer"]


class GradientMergeOptimizer(OptimizerWrapper):
    """Another optimizer, which updates at each k_steps-th run, by the gradients of all of them.

    So a batch as large as k_steps of them is trained on in the memory of one. In between nothing
    is updated, neither parameters nor what the optimizer keeps; schedules of the learning rate
    count runs. Embeddings with is_sparse=True become plain parameters.

    avg: the mean of the gradients; else their sum.

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
        """The optimizer's, on merged gradients."""
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
