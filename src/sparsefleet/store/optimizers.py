"""Row optimizers as plain descriptions; the servers hold their state beside each row.

Names and defaults follow `torch.optim` where it has the optimizer. Letters: w a value, g its
gradient after weight decay, lr the learning rate. Formulas: docs/tables.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_fraction,
    require_not_negative,
    require_positive,
)

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adamax",
    "DecayedAdagrad",
    "Ftrl",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
]

NativeFields = dict[str, float | bool | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """What every row optimizer has. Use one of the classes below."""

    kind: ClassVar[str] = ""

    lr: float = 0.01
    """Learning rate at the start; `store.set_learning_rate` changes it while running."""

    l1: float = 0.0
    """Weight decay: adds l1 * sign(w) to the gradient."""

    l2: float = 0.0
    """Weight decay: adds l2 * w to the gradient; torch calls it weight_decay."""

    def __post_init__(self) -> None:
        require_not_negative(self, "lr")
        require_not_negative(self, "l1")
        require_not_negative(self, "l2")

    def native_fields(self) -> NativeFields:
        """The fields of the native OptimizerSpec that differ by optimizer, by native name."""
        return {
            "kind": self.kind,
            "learning_rate": float(self.lr),
            "l1": float(self.l1),
            "l2": float(self.l2),
            **self._own_native_fields(),
        }

    def _own_native_fields(self) -> NativeFields:
        """What a subclass adds, or puts in place of the above."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class SGD(Optimizer):
    """w -= lr * g. No state.

    >>> SGD(lr=0.1).native_fields()["learning_rate"]
    0.1
    """

    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Momentum(Optimizer):
    """SGD with momentum, or Nesterov's: `torch.optim.SGD(momentum=...)`. State: 1 float a value."""

    kind: ClassVar[str] = "momentum"

    momentum: float = 0.9
    """Share of the last velocity that is kept."""

    nesterov: bool = False
    """Look ahead: step by g + momentum * velocity."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "momentum")
        require_bool(self, "nesterov")
        require(not self.nesterov or self.momentum > 0, self, "momentum", "> 0 with nesterov")

    def _own_native_fields(self) -> NativeFields:
        return {"momentum": float(self.momentum), "nesterov": self.nesterov}


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad(Optimizer):
    """`torch.optim.Adagrad`: the more often a value moves, the less. State: 1 float a value."""

    kind: ClassVar[str] = "adagrad"

    initial_accumulator: float = 0.0
    """The sum of squared gradients starts here."""

    eps: float = 1e-10
    """Added to the root, against division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_not_negative(self, "initial_accumulator")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {
            "initial_accumulator": float(self.initial_accumulator),
            "epsilon": float(self.eps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator a row, fed the mean of g * g. State: 1 float a row."""

    kind: ClassVar[str] = "rowwise_adagrad"

    initial_accumulator: float = 0.0
    """The sum of mean squared gradients starts here."""

    eps: float = 1e-10
    """Added to the root, against division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_not_negative(self, "initial_accumulator")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {
            "initial_accumulator": float(self.initial_accumulator),
            "epsilon": float(self.eps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DecayedAdagrad(Optimizer):
    """Adagrad whose sum forgets (Fluid's defaults). State: 1 float a value."""

    kind: ClassVar[str] = "decayed_adagrad"

    decay: float = 0.95
    """Share of the old sum that is kept at each update."""

    eps: float = 1e-6
    """Added to the root, against division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require_fraction(self, "decay")
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {"decay": float(self.decay), "epsilon": float(self.eps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RMSprop(Optimizer):
    """`torch.optim.RMSprop`. State: 1 float a value, one more each for momentum and centered."""

    kind: ClassVar[str] = "rmsprop"

    alpha: float = 0.99
    """Share of the old mean square that is kept at each update."""

    eps: float = 1e-8
    """Added to the root, against division by zero."""

    momentum: float = 0.0
    """Share of the last velocity that is kept; 0 keeps none."""

    centered: bool = False
    """Divide by the estimated deviation: the mean square less the squared mean."""

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


def _require_betas(owner: Adam | Adamax) -> None:
    betas = owner.betas
    holds = (
        isinstance(betas, tuple)
        and len(betas) == 2
        and all(is_number(beta) and 0 <= beta < 1 for beta in betas)
    )
    require(holds, owner, "betas", "two numbers with 0 <= value < 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam(Optimizer):
    """`torch.optim.Adam`, lazy: each row counts its own steps, so a rare row is corrected rightly.

    State: 2 floats a value and the row's step count.
    """

    kind: ClassVar[str] = "adam"

    lr: float = 1e-3
    """Learning rate at the start; `store.set_learning_rate` changes it while running."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Shares kept of the running means of g and of g * g."""

    eps: float = 1e-8
    """Added to the root, against division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require_betas(self)
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "epsilon": float(self.eps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Adamax(Optimizer):
    """`torch.optim.Adamax`, lazy like `Adam`. State: 2 floats a value and the row's step count."""

    kind: ClassVar[str] = "adamax"

    lr: float = 2e-3
    """Learning rate at the start; `store.set_learning_rate` changes it while running."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Shares kept of the running mean of g and of the running largest |g|."""

    eps: float = 1e-8
    """Added to |g|, against division by zero."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require_betas(self)
        require_positive(self, "eps")

    def _own_native_fields(self) -> NativeFields:
        return {
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "epsilon": float(self.eps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Ftrl(Optimizer):
    """FTRL-proximal (McMahan et al. 2013): `l1` makes exact zeros. State: 2 floats a value.

    Here `l1` and `l2` belong to the proximal step; there is no weight decay besides.
    """

    kind: ClassVar[str] = "ftrl"

    lr_power: float = -0.5
    """The sum of squared gradients enters the learning rate to this power; <= 0."""

    l1: float = 0.0
    """Values whose linear term is within +-l1 are exactly zero."""

    l2: float = 0.0
    """Shrinks values: 2 * l2 is added to the denominator."""

    initial_accumulator: float = 0.0
    """The sum of squared gradients starts here."""

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
