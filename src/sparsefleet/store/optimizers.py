"""Row optimizers as plain descriptions; servers keep the state next to each row.

Names and defaults match `torch.optim` where it has the same optimizer. In formulas, w is a value, g
its gradient after weight decay, and lr the learning rate. docs/tables.md lists all formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_fraction,
    require_not_negative,
    require_positive,
)

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "DecayedAdagrad",
    "FluidAdadelta",
    "FluidRMSProp",
    "Ftrl",
    "Lamb",
    "Lars",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
    "SGD",
    "check_optimizer",
]

NativeFields = dict[str, float | bool | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """The base class of row optimizers. Use one of the classes below."""

    kind: ClassVar[str] = ""

    lr: float = 0.01
    """Initial learning rate; `store.set_learning_rate` changes it later."""

    l1: float = 0.0
    """Weight decay: adds l1 * sign(w) to the gradient."""

    l2: float = 0.0
    """Weight decay: adds l2 * w to the gradient; torch calls it weight_decay."""

    def __post_init__(self) -> None:
        require_not_negative(self, "lr")
        require_not_negative(self, "l1")
        require_not_negative(self, "l2")

    @property
    def needs_norms(self) -> bool:
        """Return whether a step is scaled by norms over the whole parameter, as in Lars and Lamb.

        A parameter with such an optimizer is a separate dense table on one server; sparse tables
        cannot use these optimizers.
        """
        return False

    def native_fields(self) -> NativeFields:
        """Return the fields of the native OptimizerSpec, by native name."""
        return {
            "kind": self.kind,
            "learning_rate": float(self.lr),
            "l1": float(self.l1),
            "l2": float(self.l2),
            **self._own_native_fields(),
        }

    def _own_native_fields(self) -> NativeFields:
        """Return the fields that a subclass adds or overrides."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class SGD(Optimizer):
    """Plain SGD: w -= lr * g. No state.

    >>> SGD(lr=0.1).native_fields()["learning_rate"]
    0.1
    """

    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Momentum(Optimizer):
    """SGD with momentum, like `torch.optim.SGD(momentum=...)`. State: 1 float per value."""

    kind: ClassVar[str] = "momentum"

    momentum: float = 0.9
    """Momentum factor."""

    nesterov: bool = False
    """Use Nesterov momentum: step by g + momentum * velocity."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "momentum")
        require_bool(self, "nesterov")
        require(not self.nesterov or self.momentum > 0, self, "momentum", "> 0 with nesterov")

    def _own_native_fields(self) -> NativeFields:
        return {"momentum": float(self.momentum), "nesterov": self.nesterov}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Accumulating(Optimizer):
    initial_accumulator: float = 0.0
    """Initial sum of squared gradients."""

    eps: float = 1e-10
    """Added to the square root to avoid division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_not_negative(self, "initial_accumulator")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {"initial_accumulator": float(self.initial_accumulator), "epsilon": float(self.eps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad(_Accumulating):
    """`torch.optim.Adagrad`. State: 1 float per value."""

    kind: ClassVar[str] = "adagrad"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowwiseAdagrad(_Accumulating):
    """Adagrad with one accumulator per row for the mean of g * g. State: 1 float per row."""

    kind: ClassVar[str] = "rowwise_adagrad"


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayedAdagrad(Optimizer):
    """Adagrad with a decaying sum (Fluid's defaults). State: 1 float per value."""

    kind: ClassVar[str] = "decayed_adagrad"

    decay: float = 0.95
    """Decay factor of the sum."""

    eps: float = 1e-6
    """Added to the square root to avoid division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "decay")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {"decay": float(self.decay), "epsilon": float(self.eps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RMSprop(Optimizer):
    """`torch.optim.RMSprop`. State: 1 float per value, plus 1 each for momentum and centered."""

    kind: ClassVar[str] = "rmsprop"

    alpha: float = 0.99
    """Decay factor of the mean square."""

    eps: float = 1e-8
    """Added to the square root to avoid division by zero."""

    momentum: float = 0.0
    """Momentum factor; 0 for none."""

    centered: bool = False
    """Divide by an estimate of the standard deviation instead of the root mean square."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "alpha")
        require_positive(self, "eps")
        require_fraction(self, "momentum")
        require_bool(self, "centered")

    def _own_native_fields(self) -> NativeFields:
        return {
            "decay": float(self.alpha),
            "epsilon": float(self.eps),
            "momentum": float(self.momentum),
            "centered": self.centered,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class FluidRMSProp(RMSprop):
    """RMSprop as in Fluid and TensorFlow: epsilon inside the root, learning rate in the momentum.

    State: 1 float per value, plus 1 each for momentum and centered.
    """

    kind: ClassVar[str] = "fluid_rmsprop"

    alpha: float = 0.95
    """Decay factor of the mean square."""

    eps: float = 1e-6
    """Added to the mean square, or to the variance if centered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adadelta(Optimizer):
    """`torch.optim.Adadelta`. State: 2 floats per value."""

    kind: ClassVar[str] = "adadelta"

    lr: float = 1.0
    """Initial factor of the step; `store.set_learning_rate` changes it later."""

    rho: float = 0.9
    """Decay factor of the means of squared gradients and of squared steps."""

    eps: float = 1e-6
    """Added to both means to avoid division by zero and zero steps."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "rho")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {"decay": float(self.rho), "epsilon": float(self.eps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class FluidAdadelta(Adadelta):
    """Adadelta as in Fluid 1.8: no learning rate, and the mean includes the current step.

    State: 2 floats per value.
    """

    kind: ClassVar[str] = "fluid_adadelta"

    rho: float = 0.95
    """Decay factor of the means of squared gradients and of squared steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lars(Optimizer):
    """Momentum with a rate per parameter (You et al. 2017, as in Fluid). State: 1 float per value.

    rate = lr * coefficient * |w| / (|g| + l2 * |w|), with norms of the whole parameter; `l2` is
    also added to the gradient.
    """

    kind: ClassVar[str] = "lars"

    momentum: float = 0.9
    """Momentum factor."""

    coefficient: float = 0.001
    """How far a step may move a parameter, relative to its norm."""

    l2: float = 0.0005
    """Weight decay, which also enters the rate."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "momentum")
        require_not_negative(self, "coefficient")

    @property
    def needs_norms(self) -> bool:
        return True

    def _own_native_fields(self) -> NativeFields:
        return {"momentum": float(self.momentum), "decay": float(self.coefficient)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _WithBetas(Optimizer):
    lr: float = 1e-3
    """Initial learning rate; `store.set_learning_rate` changes it later."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay factors of the running means of g and of g * g."""

    eps: float = 1e-8
    """Added to the square root to avoid division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        betas = self.betas
        holds = (
            isinstance(betas, tuple)
            and len(betas) == 2
            and all(is_number(beta) and 0 <= beta < 1 for beta in betas)
        )
        require(holds, self, "betas", "two numbers with 0 <= value < 1")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "epsilon": float(self.eps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam(_WithBetas):
    """`torch.optim.Adam`, lazy: each row counts its own steps for the bias correction.

    State: 2 floats per value and the row's step count.
    """

    kind: ClassVar[str] = "adam"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW(_WithBetas):
    """`torch.optim.AdamW`, lazy like `Adam`: a row decays when it is updated.

    State: 2 floats per value and the row's step count.
    """

    kind: ClassVar[str] = "adamw"

    l2: float = 0.01
    """Decoupled weight decay: w *= 1 - lr * l2 before each step; torch calls it weight_decay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adamax(_WithBetas):
    """`torch.optim.Adamax`, lazy like `Adam`. State: 2 floats per value and a count per row."""

    kind: ClassVar[str] = "adamax"

    lr: float = 2e-3
    """Initial learning rate; `store.set_learning_rate` changes it later."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay factors of the running mean of g and of the running maximum of |g|."""

    eps: float = 1e-8
    """Added to |g| to avoid division by zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lamb(_WithBetas):
    """Adam with a rate per parameter (You et al. 2019, as in Fluid). State: 2 floats per value.

    A step m / (sqrt(v) + eps) + l2 * w is scaled by lr * |w| / |step|, with norms of the whole
    parameter. There is no bias correction.
    """

    kind: ClassVar[str] = "lamb"

    eps: float = 1e-6
    """Added to the square root to avoid division by zero."""

    l2: float = 0.01
    """Weight decay, as part of the step."""

    @property
    def needs_norms(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Ftrl(Optimizer):
    """FTRL-proximal (McMahan et al. 2013): `l1` produces exact zeros. State: 2 floats per value.

    `l1` and `l2` belong to the proximal step; there is no other weight decay.
    """

    kind: ClassVar[str] = "ftrl"

    lr_power: float = -0.5
    """Power of the sum of squared gradients in the learning rate; <= 0."""

    l1: float = 0.0
    """Values whose linear term is within +-l1 are exactly zero."""

    l2: float = 0.0
    """Shrinks values: 2 * l2 is added to the denominator."""

    initial_accumulator: float = 0.0
    """Initial sum of squared gradients."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require(is_number(self.lr_power) and self.lr_power <= 0, self, "lr_power", "a number <= 0")
        require_positive(self, "lr")
        require_not_negative(self, "initial_accumulator")

    def _own_native_fields(self) -> NativeFields:
        return {
            "l1": 0.0,
            "l2": 0.0,
            "learning_rate_power": float(self.lr_power),
            "ftrl_l1": float(self.l1),
            "ftrl_l2": float(self.l2),
            "initial_accumulator": float(self.initial_accumulator),
        }


def check_optimizer(optimizer: object, subject: str) -> None:
    """Raise ConfigError unless `optimizer` is an instance of one of the classes above.

    subject: what must be an optimizer, for the error.
    """
    if isinstance(optimizer, Optimizer):
        return
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    if isinstance(optimizer, str):
        found, name = repr(optimizer), _class_named(optimizer)
    else:
        article = "the class" if kind is optimizer else "an instance of"
        found, name = f"{article} {kind.__module__}.{kind.__qualname__}", kind.__name__
    own = globals().get(name)
    known = isinstance(own, type) and issubclass(own, Optimizer) and own is not Optimizer
    raise ConfigError(
        f"{subject} must be an instance of a class in sparsefleet.optim, got {found}; "
        f"pass sparsefleet.optim.{name if known else 'Adagrad'}(lr=...)"
    )


def _class_named(text: str) -> str:
    """Return the name of the class that differs from `text` only in case, or `text`."""
    return next((name for name in __all__ if name.lower() == text.lower()), text)
