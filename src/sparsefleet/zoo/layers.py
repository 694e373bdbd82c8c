"""Layers shared by several models.

In shapes, B is the number of examples, I the width of the input, and O the width of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from sparsefleet.errors import ConfigError

__all__ = ["mlp"]


def mlp(
    width: int, hidden: Sequence[int], out: int | None = None, *, dropout: float = 0.0
) -> nn.Sequential:
    """Return linear layers with ReLU: float32[B, I] -> float32[B, O].

    hidden: widths of the layers followed by a ReLU, and by dropout if it is not 0.
    out: width of a final linear layer; None for no such layer.

    >>> [type(layer).__name__ for layer in mlp(8, (4,), 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    if any(not isinstance(one, int) or one < 1 for one in (*hidden, width)):
        raise ConfigError(f"layer widths must be ints >= 1, got {width} and {tuple(hidden)}")
    layers: list[nn.Module] = []
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        width = next_width
    if out is not None:
        layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers)
