"""What a layer is told of a parameter."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.initializer import Initializer
from sparsefleet.fluid.regularizer import Regularizer

__all__ = ["ParamAttr", "to_param_attr"]


class ParamAttr:
    """Name, first values and treatment of a parameter. Parameters of one name are shared.

    learning_rate: a factor of the optimizer's.

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


def to_param_attr(given: Any) -> ParamAttr | None:
    """What layers take: a ParamAttr, name, initializer, regularizer or True; False for none."""
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
