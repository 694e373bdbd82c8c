"""Networks that walk along sequences. Letters: N rows, B sequences, T longest, D width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.sequences import level_of, segments

__all__ = ["ACTIVATIONS", "Walk"]

Tensor = torch.Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""What gates and candidates go through."""


Shape = tuple[int, ...]


def _gru_shape(shape: Shape, weight: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del shape, others, settings
    return [(-1, weight[0])]


class Walk:
    """Rows [N, W] of sequences, put beside each other to be walked along together.

    What is computed beyond the end of a sequence is not read.
    """

    def __init__(self, x: Tensor, offsets: Tensor, reverse: bool) -> None:
        lengths = offsets.diff()
        which = segments(offsets)
        time = torch.arange(int(offsets[-1])) - offsets[:-1][which]
        self._places = (lengths[which] - 1 - time if reverse else time, which)
        self._count = len(offsets) - 1
        longest = int(lengths.max()) if self._count else 0
        padded = x.new_zeros(longest, self._count, x.shape[1])
        self.steps = padded.index_put(self._places, x).unbind(0)

    def first(self, width: int, given: Tensor | None) -> Tensor:
        """What a state begins with: [B, width]."""
        if given is None:
            like = self.steps[0] if self.steps else torch.zeros(0)
            return like.new_zeros(self._count, width)
        return given

    def rows(self, found: list[Tensor], width: int) -> Tensor:
        """What was found, step by step, as rows of the sequences: [N, width]."""
        return torch.stack(found)[self._places] if found else torch.zeros(0, width)


@op("gru", "Input Weight Bias? H0?", "Hidden", lod="function", infer=_gru_shape)
def gru(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    first: Tensor | None,
    *,
    lods: list[Any],
    is_reverse: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Tensor, Lod]:
    """x: [N, 3 D], already multiplied; weight: [D, 3 D], in memory [D, 2 D] and then [D, D]."""
    width = weight.shape[0]
    if bias is not None:
        x = x + bias.reshape(-1)
    gate_weight, state_weight = _gru_weights(weight)
    walk = Walk(x, level_of(lods[0], "Input"), is_reverse)
    hidden = walk.first(width, first)
    gate, act = ACTIVATIONS[gate_activation], ACTIVATIONS[activation]
    found = []
    for step in walk.steps:
        gates = gate(step[:, : 2 * width] + hidden @ gate_weight)
        update, reset = gates.split_with_sizes([width, width], 1)
        candidate = act(step[:, 2 * width :] + (reset * hidden) @ state_weight)
        kept = update if origin_mode else 1 - update
        hidden = kept * hidden + (1 - kept) * candidate
        found.append(hidden)
    return walk.rows(found, width), lods[0]


def _gru_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Those of both gates [D, 2 D] and of the candidate [D, D], one after the other in memory."""
    width, flat = weight.shape[0], weight.reshape(-1)
    border = 2 * width * width
    return flat[:border].reshape(width, 2 * width), flat[border:].reshape(width, width)


def _gru_unit_shapes(x: Shape, before: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [before, before, x]


@op(
    "gru_unit",
    "Input HiddenPrev Weight Bias?",
    "Hidden ResetHiddenPrev Gate",
    lod="none",
    infer=_gru_unit_shapes,
)
def gru_unit(
    x: Tensor,
    before: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: x [B, 3 D], before [B, D]; gate: update, reset and candidate side by side."""
    width = weight.shape[0]
    if bias is not None:
        x = x + bias.reshape(-1)
    gate_weight, state_weight = _gru_weights(weight)
    gates = ACTIVATIONS[gate_activation](x[:, : 2 * width] + before @ gate_weight)
    update, reset = gates.split_with_sizes([width, width], 1)
    remembered = reset * before
    candidate = ACTIVATIONS[activation](x[:, 2 * width :] + remembered @ state_weight)
    kept = update if origin_mode else 1 - update
    hidden = kept * before + (1 - kept) * candidate
    return hidden, remembered, torch.cat([gates, candidate], 1)
