# ruff: noqa: ARG005  both functions of a case take all inputs
"""Layers next to a torch function that computes the same forward pass.

Each case is built with any `fluid` that has the API, so that the table can also be run against
the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_random = np.random.default_rng(7)


def floats(*shape: int, low: float = -1.0, high: float = 1.0) -> Any:
    return _random.uniform(low, high, shape).astype(np.float32)


def ints(*shape: int, high: int) -> Any:
    return _random.integers(0, high, shape).astype(np.int64)


@dataclass(frozen=True)
class Case:
    """inputs: by name, in the order in which both functions take them."""

    inputs: dict[str, Any]
    build: Callable[..., Any]
    """(fluid.layers, *variables) -> variable"""
    expected: Callable[..., torch.Tensor]
    """(*tensors) -> tensor"""
    lod: dict[str, list[int]] = field(default_factory=dict)
    """Lengths of the sequences of an input."""
    whole: tuple[str, ...] = ()
    """Inputs that are declared with all their sizes; others have an open first one."""


X = {"x": floats(4, 3)}
POSITIVE = {"x": floats(4, 3, low=0.1, high=2.0)}
XY = {"x": floats(4, 3), "y": floats(4, 3, low=0.5, high=1.5)}
XYZ = {"x": floats(2, 3, 4), "y": floats(3)}
PROBABILITIES = {"x": np.full((4, 3), 1 / 3, np.float32), "y": ints(4, 1, high=3)}
LOGITS = {"x": floats(4, 3), "y": ints(4, 1, high=3)}
SEQUENCES = {"x": floats(6, 3)}
LENGTHS = {"x": [2, 1, 3]}

CASES: dict[str, Case] = {}


def _unary(name: str, function: Callable[..., torch.Tensor], inputs: Any = X) -> None:
    CASES[name] = Case(inputs, lambda layers, x, name=name: getattr(layers, name)(x), function)


for _name in ("abs", "exp", "sigmoid", "tanh", "square", "cos", "sin", "ceil", "floor", "relu"):
    _unary(_name, getattr(torch, _name))
for _name in ("log", "sqrt", "rsqrt", "reciprocal"):
    _unary(_name, getattr(torch, _name), POSITIVE)
_unary("softplus", functional.softplus)
_unary("softsign", functional.softsign)
_unary("logsigmoid", functional.logsigmoid)
_unary("softmax", lambda x: torch.softmax(x, -1))
_unary("elu", functional.elu)
_unary("gelu", functional.gelu)
_unary("leaky_relu", lambda x: functional.leaky_relu(x, 0.02))
_unary("swish", functional.silu)
_unary("hard_sigmoid", lambda x: (0.2 * x + 0.5).clamp(0, 1))
_unary("relu6", functional.relu6)
_unary("soft_relu", functional.softplus)
_unary("mean", lambda x: x.mean().reshape(1))


def _binary(name: str, function: Callable[..., torch.Tensor]) -> None:
    CASES[name] = Case(XY, lambda layers, x, y, name=name: getattr(layers, name)(x, y), function)


_binary("elementwise_add", torch.add)
_binary("elementwise_sub", torch.sub)
_binary("elementwise_mul", torch.mul)
_binary("elementwise_div", torch.div)
_binary("elementwise_max", torch.maximum)
_binary("elementwise_min", torch.minimum)
CASES["elementwise_pow"] = Case(
    {"x": POSITIVE["x"], "y": XY["y"]}, lambda layers, x, y: layers.elementwise_pow(x, y), torch.pow
)

for _name, _torch in (
    ("sum", torch.sum),
    ("mean", torch.mean),
    ("max", torch.amax),
    ("min", torch.amin),
    ("prod", torch.prod),
):
    CASES[f"reduce_{_name}"] = Case(
        XYZ,
        lambda layers, x, y, name=_name: getattr(layers, f"reduce_{name}")(x, dim=1),
        lambda x, y, f=_torch: f(x, 1),
    )
    CASES[f"reduce_{_name} of all"] = Case(
        X,
        lambda layers, x, name=_name: getattr(layers, f"reduce_{name}")(x),
        lambda x, f=_torch: f(x.reshape(-1), 0).reshape(1),
    )

CASES |= {
    "reduce_sum keeps": Case(
        X,
        lambda layers, x: layers.reduce_sum(x, dim=[-1], keep_dim=True),
        lambda x: x.sum(-1, keepdim=True),
    ),
    "axis in the middle": Case(
        XYZ,
        lambda layers, x, y: layers.elementwise_add(x, y, axis=1),
        lambda x, y: x + y[:, None],
        whole=("y",),
    ),
    "arithmetic": Case(
        XY, lambda layers, x, y: (x + 1.0) * 2.0 - x / y, lambda x, y: (x + 1) * 2 - x / y
    ),
    "arithmetic from the right": Case(XY, lambda layers, x, y: 1.0 - x * y, lambda x, y: 1 - x * y),
    "scale": Case(X, lambda layers, x: layers.scale(x, 2.0, 1.0), lambda x: 2 * x + 1),
    "scale before": Case(
        X,
        lambda layers, x: layers.scale(x, 2.0, 1.0, bias_after_scale=False),
        lambda x: 2 * (x + 1),
    ),
    "clip": Case(X, lambda layers, x: layers.clip(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    "pow": Case(POSITIVE, lambda layers, x: layers.pow(x, 1.5), lambda x: x**1.5),
    "sums": Case(XY, lambda layers, x, y: layers.sums([x, y]), torch.add),
    "mul": Case(
        {"x": floats(2, 3, 4), "y": floats(12, 5)},
        lambda layers, x, y: layers.mul(x, y),
        lambda x, y: x.reshape(2, 12) @ y,
        whole=("y",),
    ),
    "matmul": Case(
        {"x": floats(2, 3, 4), "y": floats(2, 5, 4)},
        lambda layers, x, y: layers.matmul(x, y, transpose_y=True, alpha=0.5),
        lambda x, y: 0.5 * x @ y.mT,
    ),
    "cos_sim": Case(
        XY,
        lambda layers, x, y: layers.cos_sim(x, y),
        lambda x, y: functional.cosine_similarity(x, y, 1)[:, None],
    ),
    "cos_sim of one row": Case(
        {"x": floats(4, 3), "y": floats(1, 3)},
        lambda layers, x, y: layers.cos_sim(x, y),
        lambda x, y: functional.cosine_similarity(x, y.expand(4, 3), 1)[:, None],
    ),
    "l2_normalize": Case(
        X,
        lambda layers, x: layers.l2_normalize(x, axis=1),
        lambda x: functional.normalize(x, dim=1),
    ),
    "cast": Case(X, lambda layers, x: layers.cast(x, "float64"), torch.Tensor.double),
    "reshape": Case(
        XYZ, lambda layers, x, y: layers.reshape(x, [0, -1]), lambda x, y: x.reshape(2, 12)
    ),
    "transpose": Case(
        XYZ, lambda layers, x, y: layers.transpose(x, [2, 0, 1]), lambda x, y: x.permute(2, 0, 1)
    ),
    "squeeze": Case(
        {"x": floats(4, 1, 3)}, lambda layers, x: layers.squeeze(x, [1]), lambda x: x[:, 0]
    ),
    "unsqueeze": Case(X, lambda layers, x: layers.unsqueeze(x, [1]), lambda x: x[:, None]),
    "flatten": Case(XYZ, lambda layers, x, y: layers.flatten(x, 2), lambda x, y: x.reshape(6, 4)),
    "concat": Case(
        XY, lambda layers, x, y: layers.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1)
    ),
    "stack": Case(
        XY, lambda layers, x, y: layers.stack([x, y], axis=1), lambda x, y: torch.stack([x, y], 1)
    ),
    "split": Case(
        XYZ, lambda layers, x, y: layers.split(x, [1, -1], dim=1)[1], lambda x, y: x[:, 1:]
    ),
    "unstack": Case(XYZ, lambda layers, x, y: layers.unstack(x, axis=1)[2], lambda x, y: x[:, 2]),
    "expand": Case(X, lambda layers, x: layers.expand(x, [2, 1]), lambda x: x.repeat(2, 1)),
    "slice": Case(
        X, lambda layers, x: layers.slice(x, [0, 1], [1, 0], [3, -1]), lambda x: x[1:3, :-1]
    ),
    "pad": Case(
        X,
        lambda layers, x: layers.pad(x, [0, 1, 2, 0], 3.0),
        lambda x: functional.pad(x, [2, 0, 0, 1], value=3.0),
    ),
    "reverse": Case(X, lambda layers, x: layers.reverse(x, 0), lambda x: x.flip(0)),
    "assign": Case(X, lambda layers, x: layers.assign(x), lambda x: x),
    "topk": Case(X, lambda layers, x: layers.topk(x, 2)[0], lambda x: x.topk(2).values),
    "argsort": Case(X, lambda layers, x: layers.argsort(x, axis=1)[0], lambda x: x.sort(1).values),
    "gather": Case(
        {"x": floats(4, 3), "y": np.array([2, 0, 2])},
        lambda layers, x, y: layers.gather(x, y, overwrite=False),
        lambda x, y: x[y],
    ),
    "gather_nd": Case(
        {"x": floats(4, 3), "y": np.array([[2, 0], [1, 1]])},
        lambda layers, x, y: layers.gather_nd(x, y),
        lambda x, y: x[y[:, 0], y[:, 1]],
    ),
    "scatter": Case(
        {"x": floats(4, 3), "y": np.array([2, 0]), "z": floats(2, 3)},
        lambda layers, x, y, z: layers.scatter(x, y, z),
        lambda x, y, z: torch.stack([z[1], x[1], z[0], x[3]]),
    ),
    "cumsum": Case(X, lambda layers, x: layers.cumsum(x, axis=0), lambda x: x.cumsum(0)),
    "cross_entropy": Case(
        PROBABILITIES,
        lambda layers, x, y: layers.cross_entropy(x, y),
        lambda x, y: -x.log().gather(1, y),
    ),
    "cross_entropy soft": Case(
        {"x": PROBABILITIES["x"], "y": np.full((4, 3), 0.25, np.float32)},
        lambda layers, x, y: layers.cross_entropy(x, y, soft_label=True),
        lambda x, y: -(y.detach() * x.log()).sum(1, keepdim=True),
    ),
    "softmax_with_cross_entropy": Case(
        LOGITS,
        lambda layers, x, y: layers.softmax_with_cross_entropy(x, y),
        lambda x, y: functional.cross_entropy(x, y[:, 0], reduction="none")[:, None],
    ),
    "sigmoid_cross_entropy_with_logits": Case(
        {"x": floats(4, 1), "y": ints(4, 1, high=2).astype(np.float32)},
        lambda layers, x, y: layers.sigmoid_cross_entropy_with_logits(x, y),
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y.detach(), reduction="none"),
    ),
    "log_loss": Case(
        {"x": floats(4, 1, low=0.1, high=0.9), "y": ints(4, 1, high=2).astype(np.float32)},
        lambda layers, x, y: layers.log_loss(x, y),
        lambda x, y: -y.detach() * (x + 1e-4).log() - (1 - y.detach()) * (1 - x + 1e-4).log(),
    ),
    "square_error_cost": Case(
        XY, lambda layers, x, y: layers.square_error_cost(x, y), lambda x, y: (x - y) ** 2
    ),
    "huber_loss": Case(
        XY,
        lambda layers, x, y: layers.huber_loss(x, y, 0.5),
        lambda x, y: functional.huber_loss(x, y, reduction="none", delta=0.5),
    ),
    "bpr_loss": Case(
        LOGITS,
        lambda layers, x, y: layers.bpr_loss(x, y),
        lambda x, y: torch.stack(
            [
                -sum(functional.logsigmoid(row[k] - row[j]) for j in range(3) if j != k) / 2
                for row, k in zip(x, y[:, 0].tolist(), strict=True)
            ]
        )[:, None],
    ),
    "label_smooth": Case(
        X, lambda layers, x: layers.label_smooth(x, epsilon=0.1), lambda x: 0.9 * x + 0.1 / 3
    ),
    "layer_norm": Case(
        X, lambda layers, x: layers.layer_norm(x), lambda x: functional.layer_norm(x, (3,))
    ),
    "dropout at rest": Case(
        X, lambda layers, x: layers.dropout(x, 0.25, is_test=True), lambda x: 0.75 * x
    ),
    "batch_norm": Case(
        X,
        lambda layers, x: layers.batch_norm(x),
        lambda x: functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True),
    ),
}


def _pool(kind: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    CASES[f"sequence_pool {kind}"] = Case(
        SEQUENCES,
        lambda layers, x: layers.sequence_pool(x, kind),
        lambda x: torch.stack([function(part) for part in x.split([2, 1, 3])]),
        LENGTHS,
    )


_pool("sum", lambda part: part.sum(0))
_pool("average", lambda part: part.mean(0))
_pool("sqrt", lambda part: part.sum(0) / len(part) ** 0.5)
_pool("max", lambda part: part.amax(0))
_pool("first", lambda part: part[0])
_pool("last", lambda part: part[-1])

CASES |= {
    "sequence_softmax": Case(
        {"x": floats(6, 1)},
        lambda layers, x: layers.sequence_softmax(x),
        lambda x: torch.cat([part.softmax(0) for part in x.split([2, 1, 3])]),
        LENGTHS,
    ),
    "sequence_expand": Case(
        {"x": floats(3, 2), "y": floats(6, 1)},
        lambda layers, x, y: layers.sequence_expand(x, y),
        lambda x, y: x[[0, 0, 1, 2, 2, 2]],
        {"y": [2, 1, 3]},
    ),
    "sequence_expand of sequences": Case(
        {"x": floats(4, 1), "y": floats(4, 1)},
        lambda layers, x, y: layers.sequence_expand(x, y, ref_level=0),
        lambda x, y: x[[0, 1, 0, 1, 2, 3, 2, 3]],
        {"x": [2, 2], "y": [2, 2]},
    ),
    "sequence_expand_as": Case(
        {"x": floats(3, 2), "y": floats(6, 1)},
        lambda layers, x, y: layers.sequence_expand_as(x, y),
        lambda x, y: x[[0, 0, 1, 2, 2, 2]],
        {"y": [2, 1, 3]},
    ),
    "sequence_reshape": Case(
        {"x": floats(6, 2)},
        lambda layers, x: layers.sequence_reshape(x, 4),
        lambda x: x.reshape(3, 4),
        {"x": [2, 4]},
    ),
    "sequence_concat": Case(
        {"x": floats(3, 2), "y": floats(3, 2)},
        lambda layers, x, y: layers.sequence_concat([x, y]),
        lambda x, y: torch.cat([x[:1], y[:2], x[1:], y[2:]]),
        {"x": [1, 2], "y": [2, 1]},
    ),
    "sequence_pad": Case(
        {"x": floats(3, 2), "y": np.zeros(1, np.float32)},
        lambda layers, x, y: layers.sequence_pad(x, y)[0],
        lambda x, y: torch.stack([torch.cat([x[:1], torch.zeros(1, 2)]), x[1:]]),
        {"x": [1, 2]},
    ),
    "sequence_unpad": Case(
        {"x": floats(2, 3, 2), "y": np.array([1, 3])},
        lambda layers, x, y: layers.sequence_unpad(x, y),
        lambda x, y: torch.cat([x[0, :1], x[1]]),
    ),
}

PICTURES = {"x": floats(2, 4, 5, 6)}


def _weights(shape: tuple[int, ...]) -> torch.Tensor:
    """All weights of a layer that begins with Constant(0.1), as the cases below do."""
    return torch.full(shape, 0.1)


def _constant(layers: Any) -> Any:
    """An attr whose parameter is 0.1 everywhere, of whichever `fluid` has the layers."""
    import importlib

    root = layers.__name__.rpartition(".")[0]
    return importlib.import_module(f"{root}.initializer").Constant(0.1)


CASES |= {
    "conv2d": Case(
        PICTURES,
        lambda layers, x: layers.conv2d(
            x, 6, [3, 2], stride=2, padding=[1, 0], groups=2, param_attr=_constant(layers)
        ),
        lambda x: functional.conv2d(x, _weights((6, 2, 3, 2)), stride=2, padding=(1, 0), groups=2),
    ),
    "pool2d max": Case(
        PICTURES,
        lambda layers, x: layers.pool2d(x, 3, "max", pool_stride=2, pool_padding=1),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    "pool2d avg": Case(
        PICTURES,
        lambda layers, x: layers.pool2d(x, [3, 2], "avg", pool_stride=1, pool_padding=1),
        lambda x: functional.avg_pool2d(x, (3, 2), 1, 1, count_include_pad=False),
    ),
    "pool2d of all": Case(
        PICTURES,
        lambda layers, x: layers.pool2d(x, pool_type="avg", global_pooling=True),
        lambda x: x.mean((2, 3), keepdim=True),
    ),
    "sequence_conv": Case(
        SEQUENCES,
        lambda layers, x: layers.sequence_conv(x, 2, 3, param_attr=_constant(layers)),
        lambda x: torch.cat(
            [
                functional.conv1d(part.T[None], _weights((2, 3, 3)), padding=1)[0].T
                for part in x.split([2, 1, 3])
            ]
        ),
        LENGTHS,
    ),
}
