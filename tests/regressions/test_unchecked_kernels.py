"""Kernels of torch that trust their arguments cannot be reached from an exported graph.

Each of the refused ones read or wrote beyond its tensors with some arguments (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from sparsefleet.errors import ShapeError
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.export.graph_operators import check_operators, why_refused

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    "name",
    [
        "segment_reduce.default",
        "ctc_loss.IntList",
        "native_batch_norm.default",
        "_native_batch_norm_legit.default",
        "_batch_norm_no_update.default",
        "_embedding_bag.default",
        "_embedding_bag_forward_only.default",
        "_reshape_alias.default",
        "_pad_packed_sequence.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_native_multi_head_attention.default",
        "_transform_bias_rescale_qkv.default",
        "fused_moving_avg_obs_fake_quant.default",
        "fake_quantize_per_channel_affine_cachemask.default",
    ],
)
def test_kernels_that_trust_their_arguments_are_refused(name: str) -> None:
    assert why_refused(f"torch.ops.aten.{name}") is not None


def traced(model: nn.Module, *inputs: Any) -> fx.GraphModule:
    """Return the model as `read_graph` builds it."""
    module = torch.export.export(model, inputs).module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    plain = fx.GraphModule(module, module.graph)
    check_operators(plain)
    return plain


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(5, 4, mode="sum")

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.bags(ids, offsets)


def test_offsets_of_bags_are_checked_whoever_sends_them() -> None:
    model = Bags()
    ids, offsets = torch.tensor([1, 2, 4, 0]), torch.tensor([0, 2, 2])
    graph = traced(model, ids, offsets)
    assert torch.equal(graph(ids, offsets), model(ids, offsets))
    for wrong in ([0, -(10**9), 2], [0, 10**9, 2], [1, 2, 3], [0, 3, 2], [0, 2, 5]):
        with pytest.raises(ShapeError, match=r"embedding_bag: got offsets .* expected numbers"):
            graph(ids, torch.tensor(wrong))


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, mask)


def test_shapes_of_attention_are_checked() -> None:
    query, key, value = torch.rand(2, 3, 4, 8), torch.rand(2, 3, 6, 8), torch.rand(2, 3, 6, 5)
    mask = torch.zeros(4, 6)
    graph = traced(Attention(), query, key, value, mask)
    assert torch.allclose(graph(query, key, value, mask), Attention()(query, key, value, mask))
    wrong: list[Callable[[], Any]] = [
        lambda: graph(query, torch.rand(2, 3, 600, 8), value, torch.zeros(1, 1)),
        lambda: graph(query, key, value, torch.zeros(2, 6)),
        lambda: graph(torch.rand(4, 3, 4, 8), key, value, mask),
    ]
    for call in wrong:
        with pytest.raises(ShapeError, match="which do not match"):
            call()


def test_norms_of_weights_are_checked() -> None:
    class Normed(nn.Module):
        def forward(self, v: Tensor, g: Tensor) -> Tensor:
            return ATEN._weight_norm.default(v, g, 0)

    v, g = torch.rand(4, 3), torch.rand(4, 1)
    graph = traced(Normed(), v, g)
    assert torch.equal(graph(v, g), ATEN._weight_norm.default(v, g, 0))
    with pytest.raises(ShapeError, match=r"norms of shape \[1, 1\] .* expected \[4, 1\]"):
        graph(v, torch.rand(1, 1))
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    inputs = torch.rand(2, 3)
    assert torch.allclose(traced(layer, inputs)(inputs), layer(inputs))


def test_a_predictor_refuses_offsets_that_point_elsewhere(tmp_path: Path) -> None:
    model = Bags()
    values = {"ids": torch.tensor([[1, 2], [3, 4]]), "offsets": torch.tensor([0, 2])}

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            return self.inner(ids.flatten(), offsets)

    save_inference_model(tmp_path / "export", Flat(), values, onnx=False)
    predictor = Predictor(tmp_path / "export", engine="torch")
    assert len(predictor.predict(values)) == 2
    with pytest.raises(ShapeError, match="embedding_bag: got offsets"):
        predictor.predict({**values, "offsets": torch.tensor([0, -(10**9)])})
