"""Long short-term memory. Letters: N rows, B sequences or batch, T steps, D width, P projection."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.recurrent import ACTIVATIONS, Walk
from sparsefleet.fluid.ops.sequences import level_of

Tensor = torch.Tensor
Shape = tuple[int, ...]


def _rows(shape: Shape, weight: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del shape, others, settings
    return [(-1, weight[0]), (-1, weight[1] // 4)]


class _Step:
    """One step of all sequences. The columns of 4 D are candidate, input, forget, output.

    bias: [1, 4 D], or [1, 7 D] with what the cell adds to the input, forget and output gates.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, use_peepholes: bool, activations: tuple[str, str, str]
    ) -> None:
        width = weight.shape[1] // 4
        flat = bias.reshape(-1)
        self._weight = weight
        self.bias = flat[: 4 * width]
        self._checks = flat[4 * width :].chunk(3) if use_peepholes else (0.0, 0.0, 0.0)
        self._gate, self._cell, self._candidate = (ACTIVATIONS[name] for name in activations)

    def __call__(
        self, x: Tensor, hidden: Tensor, cell: Tensor, clip: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The next state and cell, for x with its bias: [B, 4 D]."""
        candidate, admit, forget, emit = (x + hidden @ self._weight).chunk(4, 1)
        admit = self._gate(admit + cell * self._checks[0])
        forget = self._gate(forget + cell * self._checks[1])
        cell = self._candidate(candidate) * admit + cell * forget
        cell = cell.clamp(-clip, clip) if clip else cell
        emit = self._gate(emit + cell * self._checks[2])
        return emit * self._cell(cell), cell


@op("lstm", "Input Weight Bias H0? C0?", "Hidden Cell", lod="function", infer=_rows)
def lstm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor | None,
    cell: Tensor | None,
    *,
    lods: list[Any],
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """x: [N, 4 D], already multiplied; weight: [D, 4 D]."""
    activations = (gate_activation, cell_activation, candidate_activation)
    step, width = _Step(weight, bias, use_peepholes, activations), weight.shape[0]
    walk = Walk(x + step.bias, level_of(lods[0], "Input"), is_reverse)
    hidden, cell = walk.first(width, hidden), walk.first(width, cell)
    states, cells = [], []
    for part in walk.steps:
        hidden, cell = step(part, hidden, cell)
        states.append(hidden)
        cells.append(cell)
    return (walk.rows(states, width), walk.rows(cells, width)), lods[0]


@op("lstmp", "Input Weight ProjWeight Bias H0? C0?", "Projection Cell", lod="function", infer=_rows)
def lstmp(
    x: Tensor,
    weight: Tensor,
    projection: Tensor,
    bias: Tensor,
    hidden: Tensor | None,
    cell: Tensor | None,
    *,
    lods: list[Any],
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """As lstm, its state projected before the next step. weight: [P, 4 D], projection: [D, P]."""
    activations = (gate_activation, cell_activation, candidate_activation)
    step = _Step(weight, bias, use_peepholes, activations)
    width, narrow = projection.shape
    walk = Walk(x + step.bias, level_of(lods[0], "Input"), is_reverse)
    hidden, cell = walk.first(narrow, hidden), walk.first(width, cell)
    states, cells = [], []
    for part in walk.steps:
        wide, cell = step(part, hidden, cell, cell_clip)
        hidden = ACTIVATIONS[proj_activation](wide @ projection)
        hidden = hidden.clamp(-proj_clip, proj_clip) if proj_clip else hidden
        states.append(hidden)
        cells.append(cell)
    return (walk.rows(states, narrow), walk.rows(cells, width)), lods[0]


@op("lstm_unit", "X C_prev", "C H", lod="none")
def lstm_unit(x: Tensor, cell: Tensor, *, forget_bias: float = 0.0) -> tuple[Tensor, Tensor]:
    """One step: x [B, 4 D], columns of input, forget and output gate and candidate."""
    admit, forget, emit, candidate = x.chunk(4, 1)
    cell = cell * (forget + forget_bias).sigmoid() + admit.sigmoid() * candidate.tanh()
    return cell, emit.sigmoid() * cell.tanh()


def _layer_shapes(x: Shape, hidden: Shape, cell: Shape, weight: Shape, **kw: Any) -> list[Shape]:
    del weight
    ways = 2 if kw["is_bidirec"] else 1
    return [(x[0], x[1], ways * kw["hidden_size"]), hidden, cell]


@op("cudnn_lstm", "Input InitH InitC W", "Out LastH LastC", lod="none", infer=_layer_shapes)
def layered_lstm(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    *,
    hidden_size: int,
    num_layers: int,
    is_bidirec: bool = False,
    dropout_prob: float = 0.0,
    is_test: bool = False,
) -> tuple[Tensor, ...]:
    """Layers of equal length sequences x [T, B, I]; weight: one vector, as cuDNN packs it."""
    matrices = layer_shapes(x.shape[2], hidden_size, num_layers, is_bidirec)
    parts = [
        part.reshape(shape)
        for part, shape in zip(
            weight.split_with_sizes([torch.Size(shape).numel() for shape in matrices]),
            matrices,
            strict=True,
        )
    ]
    count = len(parts) // 2
    by_layer = [
        part
        for at in range(0, count, 2)
        for part in (*parts[at : at + 2], *parts[count + at : count + at + 2])
    ]
    return torch.lstm(
        x, (hidden, cell), by_layer, True, num_layers, dropout_prob, not is_test, is_bidirec, False
    )


def layer_shapes(
    input_size: int, hidden_size: int, num_layers: int, is_bidirec: bool
) -> list[tuple[int, ...]]:
    """Shapes of the parts of the weight vector: matrices of all layers, then their biases.

    >>> layer_shapes(3, 2, 1, False)
    [(8, 3), (8, 2), (8,), (8,)]
    """
    ways, rows = (2 if is_bidirec else 1), 4 * hidden_size
    widths = [input_size] + [ways * hidden_size] * (num_layers - 1)
    matrices = [
        shape
        for width in widths
        for _ in range(ways)
        for shape in ((rows, width), (rows, hidden_size))
    ]
    return [*matrices, *[(rows,)] * len(matrices)]
