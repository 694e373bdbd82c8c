"""An optimizer whose loss is scaled up for the backward pass, and its gradients down again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.clip import derived_gradient
from sparsefleet.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from sparsefleet.fluid.framework import Operator, Program, Variable, program_guard
from sparsefleet.fluid.framework import default_startup_program as _default_startup
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = ["OptimizerWithMixedPrecision", "decorate"]


class OptimizerWithMixedPrecision:
    """What `decorate` gives; its programs compute in float32 on the CPU.

    The scale of the loss, and how many steps in a row were finite or not, are kept in the scope.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        amp_lists: AutoMixedPrecisionLists,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        settings: dict[str, Any],
    ) -> None:
        self._optimizer = optimizer
        self._amp_lists = amp_lists
        self._first_scale = float(init_loss_scaling)
        self._is_dynamic = use_dynamic_loss_scaling
        self._settings = settings
        self._scale: Variable | None = None
        self._scaled_loss: Variable | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def get_loss_scaling(self) -> Variable | None:
        """The variable with the factor of the loss: float32[1]."""
        return self._scale

    def get_scaled_loss(self) -> Variable | None:
        """The loss times that factor."""
        return self._scaled_loss

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """As the optimizer's; the gradients that it gives are those of the loss itself."""
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
        """Parameters and their gradients, scaled down; zeros if one of them is not finite."""
        assert loss.block is not None
        program = loss.block.program
        with program_guard(program, startup_program or _default_startup()):
            helper = LayerHelper("loss_scaling")
            self._scale = helper.create_state(
                unique_name.generate("loss_scaling"), [1], "float32", self._first_scale
            )
            self._scaled_loss = loss * self._scale
            pairs = self._optimizer.backward(
                self._scaled_loss, startup_program, parameter_list, no_grad_set, callbacks
            )
            with program.role_guard("backward"):
                return self._unscaled(helper, pairs)

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """The optimizer's."""
        return self._optimizer.apply_gradients(params_grads)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Pairs
    ) -> list[Operator]:
        """The optimizer's."""
        return self._optimizer.apply_optimize(loss, startup_program, params_grads)

    def _unscaled(self, helper: LayerHelper, pairs: Pairs) -> Pairs:
        inverse = helper.add("reciprocal", {"X": self._scale})
        down = [
            (parameter, derived_gradient("scale_gradient", {"X": gradient, "Factor": inverse}, {}))
            for parameter, gradient in pairs
        ]
        if not self._is_dynamic:
            return down
        finite = helper.add(
            "gradients_are_finite", {"X": [gradient for _, gradient in down]}, dtype="bool"
        )
        counts = [
            helper.create_state(unique_name.generate(name), [1], "int32")
            for name in ("num_good_steps", "num_bad_steps")
        ]
        states = {"LossScaling": self._scale, "GoodSteps": counts[0], "BadSteps": counts[1]}
        helper.append_op(
            "update_loss_scaling", {"Finite": finite, **states}, states, self._settings
        )
        return [
            (parameter, derived_gradient("keep_if", {"X": gradient, "Condition": finite}, {}))
            for parameter, gradient in down
        ]


def decorate(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """An optimizer that scales the loss, and with it all gradients, on the backward pass.

    use_dynamic_loss_scaling: a scale that grows by incr_ratio after more than incr_every_n_steps
        finite steps in a row, and shrinks by decr_ratio after more than decr_every_n_nan_or_inf
        others, in which gradients are zero.
    """
    settings = {
        "incr_every_n_steps": incr_every_n_steps,
        "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
        "incr_ratio": float(incr_ratio),
        "decr_ratio": float(decr_ratio),
    }
    lists = AutoMixedPrecisionLists() if amp_lists is None else amp_lists
    return OptimizerWithMixedPrecision(
        optimizer, lists, init_loss_scaling, use_dynamic_loss_scaling, settings
    )
