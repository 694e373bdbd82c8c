"""Fluid's optimizers, with Fluid's defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import Parameter, Variable
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.operators.schedules import autoincreased_step_counter
from sparsefleet.fluid.optimizer.optimizer import Optimizer

__all__ = [
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DGCMomentum",
    "DGCMomentumOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Ftrl",
    "FtrlOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "Momentum",
    "MomentumOptimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "SGD",
    "SGDOptimizer",
]

Rate = float | Variable


class SGDOptimizer(Optimizer):
    """Plain SGD: p -= rate * g."""

    type = "sgd"

    def table_settings(self) -> dict[str, Any]:
        return {"class": "SGD"}


class MomentumOptimizer(Optimizer):
    """v = momentum * v + g; p -= rate * v or, with Nesterov, p -= rate * (g + momentum * v)."""

    type = "momentum"
    accumulators = (("Velocity", "velocity", 0.0),)

    def __init__(
        self, learning_rate: Rate, momentum: float, use_nesterov: bool = False, **common: Any
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {"mu": momentum, "use_nesterov": use_nesterov}

    def table_settings(self) -> dict[str, Any]:
        known = self._settings
        return {"class": "Momentum", "momentum": known["mu"], "nesterov": known["use_nesterov"]}


class DGCMomentumOptimizer(MomentumOptimizer):
    """Momentum.

    Fluid sends only the largest gradients after rampup_begin_step; here, all are sent.
    """

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        *,
        sparsity: Sequence[float] = (0.999,),
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        **common: Any,
    ) -> None:
        if rampup_begin_step < 0 or rampup_step < 1 or not all(0 <= s < 1 for s in sparsity):
            raise ConfigError(
                "DGCMomentumOptimizer: rampup_begin_step must be >= 0, rampup_step >= 1 and "
                f"sparsity in [0, 1), got {rampup_begin_step}, {rampup_step}, {list(sparsity)}"
            )
        del num_trainers
        super().__init__(learning_rate, momentum, use_nesterov, **common)


class LarsMomentumOptimizer(Optimizer):
    """Momentum (LARS) with a rate per parameter, scaled by the ratio of its norm to its gradient's
    norm.
    """

    type = "lars_momentum"
    accumulators = (("Velocity", "velocity", 0.0),)

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {
            "mu": momentum,
            "lars_coeff": lars_coeff,
            "lars_weight_decay": lars_weight_decay,
        }


class AdagradOptimizer(Optimizer):
    """Adagrad: divides each value's rate by the square root of the sum of its squared gradients."""

    type = "adagrad"
    accumulators = (("Moment", "moment", 0.0),)

    def __init__(
        self,
        learning_rate: Rate,
        epsilon: float = 1e-6,
        *,
        initial_accumulator_value: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings, self._initial = {"epsilon": epsilon}, initial_accumulator_value

    def first_value(self, name: str, value: float) -> float:
        del name, value
        return self._initial

    def table_settings(self) -> dict[str, Any]:
        eps = self._settings["epsilon"]
        return {"class": "Adagrad", "eps": eps, "initial_accumulator": self._initial}


class AdadeltaOptimizer(Optimizer):
    """Adadelta (Zeiler 2012); as in Fluid, the learning rate is not used."""

    type = "adadelta"
    accumulators = (
        ("AvgSquaredGrad", "_avg_squared_grad", 0.0),
        ("AvgSquaredUpdate", "_avg_squared_update", 0.0),
    )

    def __init__(
        self, learning_rate: Rate, epsilon: float = 1e-6, rho: float = 0.95, **common: Any
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {"epsilon": epsilon, "rho": rho}

    def table_settings(self) -> dict[str, Any]:
        known = self._settings
        return {"class": "FluidAdadelta", "rho": known["rho"], "eps": known["epsilon"]}


class DecayedAdagradOptimizer(Optimizer):
    """Adagrad with a decaying sum of squared gradients."""

    type = "decayed_adagrad"
    accumulators = (("Moment", "moment", 0.0),)

    def __init__(
        self, learning_rate: Rate, decay: float = 0.95, epsilon: float = 1e-6, **common: Any
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {"decay": decay, "epsilon": epsilon}

    def table_settings(self) -> dict[str, Any]:
        known = self._settings
        return {"class": "DecayedAdagrad", "decay": known["decay"], "eps": known["epsilon"]}


class _WithBetas(Optimizer):
    """Base class for Adam-like updates with running means of the gradient and its magnitude."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        epsilon: float = 1e-8,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}

    def settings(self) -> dict[str, Any]:
        return {name: x for name, x in self._settings.items() if not isinstance(x, Variable)}

    def extra_inputs(self) -> dict[str, Variable]:
        slots = {"beta1": "Beta1Tensor", "beta2": "Beta2Tensor"}
        return {slots[name]: x for name, x in self._settings.items() if isinstance(x, Variable)}

    def first_value(self, name: str, value: float) -> float:
        powers = {"beta1_pow_acc": ("beta1", 0.9), "beta2_pow_acc": ("beta2", 0.999)}
        if name not in powers:
            return value
        beta, default = powers[name]
        found = self._settings[beta]
        return default if isinstance(found, Variable) else found  # as in Fluid


class AdamOptimizer(_WithBetas):
    """Adam (Kingma and Ba 2014).

    In Fluid, moments keep moving a rare row in the steps between its batches. A table does not
    touch rows without gradients, so it applies the whole movement at once, in a step with beta1 = 0
    and the learning rate corrected only for beta2. A row with a gradient in every step moves as in
    Fluid. A row seen once moves less if that is in the first steps (by 1.0 times the learning rate
    instead of 6.0 times, if seen only in step 1), and by nearly the same amount if it is later.
    With lazy_mode, a row is only updated when it has a gradient, and counts its own steps.
    """

    type = "adam"
    accumulators = (
        ("Moment1", "moment1", 0.0),
        ("Moment2", "moment2", 0.0),
        ("Beta1Pow", "beta1_pow_acc", 0.0),
        ("Beta2Pow", "beta2_pow_acc", 0.0),
    )

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        epsilon: float = 1e-8,
        *,
        lazy_mode: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **common)
        self._lazy_mode = lazy_mode

    def table_settings(self) -> dict[str, Any] | None:
        known = self._settings
        if self.extra_inputs():  # a table takes only numbers
            return None
        if not self._lazy_mode:
            return {"class": "DecayedAdagrad", "decay": known["beta2"], "eps": known["epsilon"]}
        betas = [known["beta1"], known["beta2"]]
        return {"class": "Adam", "betas": betas, "eps": known["epsilon"]}

    def table_rate(self, rate: Variable) -> Variable:
        if self._lazy_mode:
            return rate
        helper = LayerHelper("adam_rate")
        step = autoincreased_step_counter("@ADAM_STEP@")
        with helper.main_program.role_guard("schedule"):
            attrs = {"beta2": self._settings["beta2"]}
            return helper.add("adam_rate", {"Step": step, "Rate": rate}, attrs)


class AdamaxOptimizer(_WithBetas):
    """Adamax: Adam with a decaying maximum of the gradient's magnitude instead of its mean
    square.
    """

    type = "adamax"
    accumulators = (
        ("Moment", "moment", 0.0),
        ("InfNorm", "inf_norm", 0.0),
        ("Beta1Pow", "beta1_pow_acc", 0.0),
    )


class LambOptimizer(_WithBetas):
    """Lamb: Adam with a rate per parameter, scaled by the parameter's norm (You et al. 2019).

    exclude_from_weight_decay_fn: returns whether to exclude a parameter from weight decay.
    """

    type = "lamb"
    accumulators = AdamOptimizer.accumulators

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        *,
        epsilon: float = 1e-6,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **common)
        self._settings["weight_decay"] = lamb_weight_decay
        self._is_excluded = exclude_from_weight_decay_fn

    def settings_of(self, parameter: Parameter) -> dict[str, Any]:
        found = self.settings()
        if self._is_excluded is not None and self._is_excluded(parameter):
            found["weight_decay"] = 0.0
        return found


class RMSPropOptimizer(Optimizer):
    """RMSProp: divides each gradient by the root of a running mean of its square, plus epsilon."""

    type = "rmsprop"
    accumulators = (
        ("MeanSquare", "mean_square", 0.0),
        ("MeanGrad", "mean_grad", 0.0),
        ("Moment", "momentum", 0.0),
    )

    def __init__(
        self,
        learning_rate: Rate,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        *,
        centered: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {
            "decay": rho,
            "epsilon": epsilon,
            "momentum": momentum,
            "centered": centered,
        }

    def table_settings(self) -> dict[str, Any]:
        known = dict(self._settings)
        alpha, eps = known.pop("decay"), known.pop("epsilon")
        return {"class": "FluidRMSProp", "alpha": alpha, "eps": eps, **known}


class FtrlOptimizer(Optimizer):
    """FTRL-proximal (McMahan et al. 2013), in which l1 produces exact zeros."""

    type = "ftrl"
    accumulators = (("SquaredAccumulator", "squared", 0.0), ("LinearAccumulator", "linear", 0.0))

    def __init__(
        self,
        learning_rate: Rate,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, **common)
        self._settings = {"l1": l1, "l2": l2, "lr_power": lr_power}

    def table_settings(self) -> dict[str, Any] | None:
        if self.regularization:
            return None
        # The table's formula has 2 * l2 where Fluid has l2.
        return {"class": "Ftrl", **self._settings, "l2": self._settings["l2"] / 2}


Adadelta = AdadeltaOptimizer
Adagrad = AdagradOptimizer
Adam = AdamOptimizer
Adamax = AdamaxOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Ftrl = FtrlOptimizer
Lamb = LambOptimizer
LarsMomentum = LarsMomentumOptimizer
Momentum = MomentumOptimizer
DGCMomentum = DGCMomentumOptimizer
RMSProp = RMSPropOptimizer
SGD = SGDOptimizer
