"""Layers shared by several models.

In shapes, B is the number of examples, I the width of the input, and O the width of the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from sparsefleet.errors import ConfigError

__all__ = ["mlp", "require_counts", "require_last_width"]


def mlp(
    width: int, hidden: Sequence[int], out: int | None = None, *, dropout: float = 0.0
) -> nn.Sequential:
    """Return linear layers with ReLU: float32[B, I] -> float32[B, O].

    hidden: widths of the layers followed by a ReLU, and by dropout if it is not 0.
    out: width of a final linear layer; None for no such layer.

    >>> [type(layer).__name__ for layer in mlp(8, (4,), 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    between: list[Any] = list(hidden) if isinstance(hidden, Iterable) else [None]
    if any(
        not isinstance(one, int) or one < 1
        for one in (width, *between, width if out is None else out)
    ):
        raise ConfigError(
            f"layer widths must be a list of ints >= 1, got {hidden!r:.100} between {width!r} and "
            f"{out!r}"
        )
    layers: list[nn.Module] = []
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        width = next_width
    if out is not None:
        layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers)


def require_last_width(model: str, argument: str, widths: Sequence[int]) -> int:
    """Return the last width of layers that must exist. Raises ConfigError if there is none."""
    if not widths:
        raise ConfigError(f"{model}: {argument} needs at least one layer width, got {widths!r}")
    return widths[-1]


def require_counts(model: str, least: int = 1, **counts: object) -> None:
    """Raise ConfigError unless each argument of a model is an int of at least `least`.

    >>> require_counts("MMoE", tasks=2, experts=4)
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise ConfigError(f"{model}: {name} must be an int >= {least}, got {count!r:.100}")
