"""An optimizer for programs that compute in half precision, with a scaled loss."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.clip import derived_gradient
from sparsefleet.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from sparsefleet.fluid.contrib.mixed_precision.fp16_utils import rewrite_program
from sparsefleet.fluid.framework import Operator, Program, Variable, program_guard
from sparsefleet.fluid.framework import default_main_program as _default_main
from sparsefleet.fluid.framework import default_startup_program as _default_startup
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs
from sparsefleet.fluid.optimizer.wrapper import OptimizerWrapper

__all__ = ["OptimizerWithMixedPrecision", "decorate"]


class OptimizerWithMixedPrecision(OptimizerWrapper):
    """What `decorate` gives.

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
        super().__init__(optimizer)
        self._amp_lists = amp_lists
        self._first_scale = float(init_loss_scaling)
        self._is_dynamic = use_dynamic_loss_scaling
        self._settings = settings
        self._scale: Variable | None = None
        self._scaled_loss: Variable | None = None

    def get_loss_scaling(self) -> Variable:
        """The variable with the factor of the loss: float32[1]."""
        if self._scale is None:
            self._scale = _state("loss_scaling", "float32", self._first_scale)
        return self._scale

    def get_scaled_loss(self) -> Variable | None:
        """The loss times that factor, once there is a backward pass."""
        return self._scaled_loss

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Rewrites the program, adds the backward pass: parameters and gradients, scaled down."""
        assert loss.block is not None
        program = loss.block.program
        with program_guard(program, startup_program or _default_startup()):
            rewrite_program(program, self._amp_lists)
            scale = self.get_loss_scaling()
            self._scaled_loss = loss * scale
            pairs = self._optimizer.backward(
                self._scaled_loss, startup_program, parameter_list, no_grad_set, callbacks
            )
            with program.role_guard("backward"):
                inverse = LayerHelper("loss_scaling").add("reciprocal", {"X": scale})
                return [
                    (p, derived_gradient("scale_gradient", {"X": g, "Factor": inverse}))
                    for p, g in pairs
                ]

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """The optimizer's; with a dynamic scale only where all gradients are finite."""
        if self._is_dynamic:
            with _default_main().role_guard("backward"):
                params_grads = self._kept_if_finite(params_grads)
        return self._optimizer.apply_gradients(params_grads)

    def _kept_if_finite(self, pairs: Pairs) -> Pairs:
        helper = LayerHelper("update_loss_scaling")
        gradients = [gradient for _, gradient in pairs]
        finite = helper.add("gradients_are_finite", {"X": gradients}, dtype="bool")
        states = {
            "LossScaling": self.get_loss_scaling(),
            "GoodSteps": _state("num_good_steps", "int32"),
            "BadSteps": _state("num_bad_steps", "int32"),
        }
        helper.append_op(
            "update_loss_scaling", {"Finite": finite, **states}, states, self._settings
        )
        return [
            (parameter, derived_gradient("keep_if", {"X": gradient, "Condition": finite}))
            for parameter, gradient in pairs
        ]


def _state(name: str, dtype: str, value: float = 0.0) -> Variable:
    name = unique_name.generate(name)
    return LayerHelper(name).create_state(name, [1], dtype, value)


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
    """An optimizer whose `minimize` lets white operators compute in half precision.

    On a CPU that is bfloat16, on a GPU float16; parameters and what the optimizer keeps are
    float32. The loss, and with it all gradients, is scaled on the backward pass.

    use_dynamic_loss_scaling: a scale that grows by incr_ratio after more than incr_every_n_steps
        finite steps in a row, and shrinks by decr_ratio after more than decr_every_n_nan_or_inf
        others. A step with a gradient that is not finite changes nothing else.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    ...     optimizer = decorate(fluid.optimizer.SGD(0.1), init_loss_scaling=8.0)
    ...     _, pairs = optimizer.minimize(loss)
    >>> [parameter.dtype for parameter, _ in pairs]
    ['float32', 'float32']
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
