"""Weight decay that is not part of the gradient."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import (
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from sparsefleet.fluid.optimizer.optimizer import Optimizer

__all__ = ["extend_with_decoupled_weight_decay"]


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
