"""Parameters that look ahead of slower ones."""

from __future__ import annotations

from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import (
    Operator,
    Program,
    Variable,
    default_startup_program,
    program_guard,
)
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.optimizer.averages import plain_parameters
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = ["LookaheadOptimizer"]


class LookaheadOptimizer:
    """Another optimizer's steps; every k of them, back to alpha of the way (Zhang et al. 2019)."""

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise TypeError(f"LookaheadOptimizer takes an optimizer, got {inner_optimizer!r}")
        if not 0.0 <= alpha <= 1.0 or not isinstance(k, int) or k < 1:
            raise ConfigError(
                f"LookaheadOptimizer: alpha must be in 0..1 and k a number of steps >= 1, got "
                f"{alpha!r} and {k!r}"
            )
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k
        self.type = "lookahead"

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], Pairs]:
        """As that of the inner optimizer; then the slow parameters, `<name>@SLOW`."""
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
