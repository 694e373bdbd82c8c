"""Long short-term memory.

In shapes, N is the number of rows in all sequences, B the batch size, T the number of steps, D the
width.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.initializer import Initializer
from sparsefleet.fluid.framework.param_attr import ParamAttr, to_param_attr
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.matrices import fc
from sparsefleet.fluid.operators.recurrent import ACTIVATIONS, Walk, check_activations
from sparsefleet.fluid.operators.sequences import level_of
from sparsefleet.fluid.operators.shaping import concat

__all__ = ["dynamic_lstm", "dynamic_lstmp", "lstm", "lstm_unit"]

Tensor = torch.Tensor
Shape = tuple[int, ...]


def _rows(shape: Shape, weight: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del shape, others, settings
    return [(-1, weight[0]), (-1, weight[1] // 4)]


class _Step:
    """Computes one step of all sequences. The 4 D columns are candidate, input, forget and output.

    bias: [1, 4 D], or [1, 7 D] with peephole weights from the cell to the three gates.
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
        """Return the next state and cell. x: [B, 4 D], including the bias."""
        candidate, admit, forget, emit = (x + hidden @ self._weight).chunk(4, 1)
        admit = self._gate(admit + cell * self._checks[0])
        forget = self._gate(forget + cell * self._checks[1])
        cell = self._candidate(candidate) * admit + cell * forget
        cell = cell.clamp(-clip, clip) if clip else cell
        emit = self._gate(emit + cell * self._checks[2])
        return emit * self._cell(cell), cell


@op("lstm", "Input Weight Bias H0? C0?", "Hidden Cell", lod="function", infer=_rows)
def lstm_op(
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
    """Run an LSTM along sequences. x: [N, 4 D], already projected; weight: [D, 4 D]."""
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
    """Run an LSTM whose state is projected to width P before the next step.

    weight: [P, 4 D]; projection: [D, P].
    """
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
def lstm_unit_op(x: Tensor, cell: Tensor, *, forget_bias: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute one step: x [B, 4 D] holds the input, forget and output gates and the candidate."""
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
    """Run layers over sequences of equal length, x [T, B, I].

    weight: a vector, packed as in cuDNN.
    """
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
    """Return the shapes packed in the weight vector: matrices of all layers, then their biases.

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


def _attrs(helper: LayerHelper, param_attr: Any, bias_attr: Any) -> tuple[ParamAttr, ParamAttr]:
    weight, bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight is None or bias is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    return weight, bias


def _check_width(helper: LayerHelper, input: Variable, size: int) -> int:
    if size % 4 or helper.check_input(input).shape[-1] != size:
        raise helper.refuse(
            f"size must be 4 * width and equal the last dimension of input, got {size}, {input}"
        )
    return size // 4


@layer
def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return states and cells along each sequence: [N, D] each, D = size / 4.

    input: [N, 4 D], the inputs of the candidate and of the input, forget and output gates, from fc.
    use_peepholes: connect the cell to the gates; the bias is then [1, 7 D], otherwise [1, 4 D].
    """
    helper = LayerHelper("lstm", name)
    width = _check_width(helper, input, size)
    check_activations(helper, gate_activation, cell_activation, candidate_activation)
    if (h_0 is None) != (c_0 is None):
        raise helper.refuse("pass both h_0 and c_0, or neither")
    weight, bias = _attrs(helper, param_attr, bias_attr)
    inputs: dict[str, Any] = {
        "Input": input,
        "Weight": helper.create_parameter(weight, [width, size], dtype),
        "Bias": helper.create_parameter(
            bias, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True
        ),
        "H0": h_0,
        "C0": c_0,
    }
    attrs = op_settings("lstm", locals())
    hidden, cell = helper.new_variable(dtype, lod_level=1), helper.new_variable(dtype, lod_level=1)
    helper.skip_names(2)
    helper.append_op("lstm", inputs, {"Hidden": hidden, "Cell": cell}, attrs)
    return hidden, cell


@layer
def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """Run dynamic_lstm with the state projected to proj_size before the next step (Sak et al.
    2014).

    Returns projections [N, proj_size] and cells [N, D]. cell_clip, proj_clip: limits on their
    values.
    """
    helper = LayerHelper("lstmp", name)
    width = _check_width(helper, input, size)
    activations = (gate_activation, cell_activation, candidate_activation, proj_activation)
    check_activations(helper, *activations)
    weight, bias = _attrs(helper, param_attr, bias_attr)
    inputs: dict[str, Any] = {
        "Input": input,
        "Weight": helper.create_parameter(weight, [proj_size, size], dtype),
        "ProjWeight": helper.create_parameter(
            _attrs(helper, param_attr, None)[0], [width, proj_size], dtype
        ),
        "Bias": helper.create_parameter(
            bias, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True
        ),
        "H0": h_0,
        "C0": c_0,
    }
    attrs = op_settings("lstmp", locals(), cell_clip=cell_clip or 0.0, proj_clip=proj_clip or 0.0)
    made, cell = helper.new_variable(dtype, lod_level=1), helper.new_variable(dtype, lod_level=1)
    helper.skip_names(4)
    helper.append_op("lstmp", inputs, {"Projection": made, "Cell": cell}, attrs)
    return made, cell


@layer
def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Compute the next state and cell [B, D] from x_t [B, M] and the previous state and cell."""
    helper = LayerHelper("lstm_unit", name)
    for what, value in (
        ("x_t", x_t),
        ("hidden_t_prev", hidden_t_prev),
        ("cell_t_prev", cell_t_prev),
    ):
        if len(helper.check_input(value, what).shape) != 2:
            raise helper.refuse(f"{what} must have 2 axes, got {value}")
    width = cell_t_prev.shape[1]
    if hidden_t_prev.shape[1] != width:
        raise helper.refuse(
            f"hidden_t_prev and cell_t_prev must have the same shape, got {hidden_t_prev} and "
            f"{cell_t_prev}"
        )
    together = concat([x_t, hidden_t_prev], axis=1)
    x = fc(together, 4 * width, param_attr=param_attr, bias_attr=bias_attr)
    inputs, attrs = {"X": x, "C_prev": cell_t_prev}, {"forget_bias": forget_bias}
    cell, hidden = helper.add_all("lstm_unit", inputs, attrs, [x_t.dtype] * 2)
    return hidden, cell


@layer
def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Initializer | None = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Run LSTM layers over sequences of equal length.

    Returns outputs [T, B, directions * D], last states and last cells.

    input: [T, B, I]; init_h, init_c: [layers, B, D], with a layer's two directions adjacent. The
    weights are one vector, packed as in cuDNN.
    """
    del max_len, seed  # the input determines the sizes; torch draws the masks
    helper = LayerHelper("cudnn_lstm", name)
    shapes = layer_shapes(helper.check_input(input).shape[2], hidden_size, num_layers, is_bidirec)
    size = sum(prod(shape) for shape in shapes)
    weight = helper.create_parameter(
        ParamAttr(), [size], input.dtype, default_initializer=default_initializer
    )
    inputs = {"Input": input, "InitH": init_h, "InitC": init_c, "W": weight}
    attrs = op_settings("cudnn_lstm", locals())
    out, last_h, last_c = helper.add_all("cudnn_lstm", inputs, attrs, [input.dtype] * 3)
    return out, last_h, last_c
