"""Networks that walk along sequences. Letters: N rows, B sequences, T longest, D width."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.activations import UNARY
from sparsefleet.fluid.ops.sequences import level_of, segments

Tensor = torch.Tensor


def _gru_shape(
    shape: tuple[int, ...], weight: tuple[int, ...], *others: Any, **settings: Any
) -> list[tuple[int, ...]]:
    del shape, others, settings
    return [(-1, weight[0])]


def _places(offsets: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The sequence of each row, and its time in it: int64[N]."""
    lengths = offsets.diff()
    which = segments(offsets)
    time = torch.arange(int(offsets[-1])) - offsets[:-1][which]
    return which, lengths[which] - 1 - time if reverse else time


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
    offsets, width = level_of(lods[0], "Input"), weight.shape[0]
    which, time = _places(offsets, is_reverse)
    count, longest = len(offsets) - 1, int(offsets.diff().max()) if len(offsets) > 1 else 0
    if bias is not None:
        x = x + bias.reshape(-1)
    flat = weight.reshape(-1)
    gate_weight = flat[: 2 * width * width].reshape(width, 2 * width)
    state_weight = flat[2 * width * width :].reshape(width, width)
    padded = x.new_zeros(longest, count, 3 * width).index_put((time, which), x)
    hidden = x.new_zeros(count, width) if first is None else first
    gate, act = UNARY[gate_activation], UNARY[activation]
    found = []
    for step in padded.unbind(0):
        # What is computed beyond the end of a sequence is not read.
        gates = gate(step[:, : 2 * width] + hidden @ gate_weight)
        update, reset = gates.split_with_sizes([width, width], 1)
        candidate = act(step[:, 2 * width :] + (reset * hidden) @ state_weight)
        kept = update if origin_mode else 1 - update
        hidden = kept * hidden + (1 - kept) * candidate
        found.append(hidden)
    if not found:
        return x.new_zeros(0, width), lods[0]
    return torch.stack(found)[time, which], lods[0]
