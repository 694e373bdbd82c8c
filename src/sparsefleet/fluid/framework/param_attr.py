"""The attributes that a user gives a layer for its parameters, and weight decay."""

from __future__ import annotations

from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework.initializer import Initializer

__all__ = [
    "ExistingParamAttr",
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "ParamAttr",
    "Regularizer",
    "WeightNormParamAttr",
    "regularizer_from_json",
    "to_param_attr",
]


class Regularizer:
    """Base class for L1Decay and L2Decay."""

    field = ""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = float(regularization_coeff)

    def to_json(self) -> dict[str, Any]:
        return {self.field: self.coeff}


class L1DecayRegularizer(Regularizer):
    """Adds coeff * sign(w) to the gradient.

    >>> L1Decay(0.1).to_json()
    {'l1': 0.1}
    """

    field = "l1"


class L2DecayRegularizer(Regularizer):
    """Adds coeff * w to the gradient."""

    field = "l2"


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer


def regularizer_from_json(document: dict[str, Any]) -> Regularizer:
    """Parse a document written by `to_json`."""
    for kind in (L1DecayRegularizer, L2DecayRegularizer):
        if list(document) == [kind.field]:
            return kind(document[kind.field])
    raise ConfigError(f"expected a regularizer, got {document!r}")


class ParamAttr:
    """The name, initializer and training options of a parameter. Layers share parameters by name.

    learning_rate: a factor for the optimizer's learning rate.

    >>> ParamAttr(name="emb", learning_rate=0.5).name
    'emb'
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: Regularizer | None = None,
        trainable: bool = True,
        *,
        gradient_clip: Any = None,
        do_model_average: bool = True,
    ) -> None:
        for given, kind, what in (
            (initializer, Initializer, "initializer"),
            (regularizer, Regularizer, "regularizer"),
        ):
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"ParamAttr: {what} must be a fluid.{what} object, got {given!r}")
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.gradient_clip = gradient_clip
        self.do_model_average = do_model_average

    @staticmethod
    def _to_attr(arg: Any) -> Any:
        """Convert a layer's attr argument, or each in a list of them, to a ParamAttr or False."""
        if isinstance(arg, list | tuple):
            return [ParamAttr._to_attr(item) for item in arg]
        return to_param_attr(arg) or False


class WeightNormParamAttr(ParamAttr):
    """Splits a parameter into a trained length, `<name>_g`, and a trained direction, `<name>_v`.

    dim: the axis along which lengths differ; None means a single length. See ParamAttr for the
        other arguments.
    """

    def __init__(self, dim: int | None = None, name: str | None = None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.dim = dim


class ExistingParamAttr(ParamAttr):
    """Makes a layer use a parameter that belongs to a different object, in imperative mode."""

    def __init__(self, parameter: Any) -> None:
        super().__init__(name=parameter.name)
        self.parameter = parameter


def to_param_attr(given: Any) -> ParamAttr | None:
    """Convert a ParamAttr, name, initializer, regularizer or True; return None for False."""
    if given is False:
        return None
    if given is None or given is True:
        return ParamAttr()
    if isinstance(given, ParamAttr):
        return given
    if isinstance(given, str):
        return ParamAttr(name=given)
    if isinstance(given, Initializer):
        return ParamAttr(initializer=given)
    if isinstance(given, Regularizer):
        return ParamAttr(regularizer=given)
    raise TypeError(
        f"param_attr must be a ParamAttr, a name, an initializer, a regularizer or a bool, "
        f"got {given!r}"
    )
