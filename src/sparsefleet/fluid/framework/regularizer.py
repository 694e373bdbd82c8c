"""Weight decay: terms that are added to gradients to keep parameters small."""

from __future__ import annotations

from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.regularizer")

__all__ = [
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "Regularizer",
    "regularizer_from_json",
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
