"""TorchRec's DLRM with the same names, so that programs and state dicts stay compatible.

In shapes, B is the number of examples, F the number of features, and D the row width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.errors import ConfigError
from sparsefleet.nn.pair_products import PairProducts
from sparsefleet.torchrec_like.collections import EmbeddingBagCollection

__all__ = ["DLRM", "DLRMTrain", "DLRM_DCN"]


class _Perceptron(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self._linear = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self._linear(x))


class _Mlp(nn.Module):
    def __init__(self, width: int, sizes: Sequence[int]) -> None:
        super().__init__()
        widths = [width, *sizes]
        self._mlp = nn.Sequential(
            *(_Perceptron(before, after) for before, after in zip(widths, sizes, strict=False))
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self._mlp(x)
        return found


class SparseArch(nn.Module):
    """Pools the rows of all features: a KeyedJaggedTensor -> float32[B, F, D]."""

    def __init__(self, embedding_bag_collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        configs = embedding_bag_collection.embedding_bag_configs()
        self.sparse_feature_names = [name for one in configs for name in one.feature_names]
        self.dim: int = configs[0].embedding_dim

    def forward(self, features: Any) -> Tensor:
        rows: Tensor = self.embedding_bag_collection(features).values()
        return rows.view(rows.shape[0], -1, self.dim)


class DenseArch(nn.Module):
    """Layers over the dense features: float32[B, I] -> float32[B, D]."""

    def __init__(self, in_features: int, layer_sizes: Sequence[int]) -> None:
        super().__init__()
        self.model = _Mlp(in_features, layer_sizes)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.model(features)
        return found


class InteractionArch(nn.Module):
    """Concatenates the dense vector and the dot products of all pairs of vectors."""

    def __init__(self, num_sparse_features: int) -> None:
        super().__init__()
        self.products = PairProducts(num_sparse_features + 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Map dense float32[B, D] and sparse float32[B, F, D] to float32[B, D + pairs]."""
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        return torch.cat([dense, self.products(vectors)], dim=1)


class LowRankCrossNet(nn.Module):
    """The low-rank cross layers of DCN-V2: float32[B, I] -> float32[B, I]."""

    def __init__(self, in_features: int, num_layers: int, low_rank: int = 1) -> None:
        super().__init__()
        if num_layers < 1 or low_rank < 1:
            raise ConfigError(
                f"a cross net needs num_layers and low_rank >= 1, got {num_layers} and {low_rank}"
            )

        def factors(*shape: int) -> nn.ParameterList:
            return nn.ParameterList(
                nn.Parameter(nn.init.xavier_normal_(torch.empty(shape))) for _ in range(num_layers)
            )

        self.W_kernels = factors(in_features, low_rank)
        self.V_kernels = factors(low_rank, in_features)
        self.bias = nn.ParameterList(
            nn.Parameter(torch.zeros(in_features)) for _ in range(num_layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for down, up, bias in zip(self.V_kernels, self.W_kernels, self.bias, strict=True):
            mixed = functional.linear(functional.linear(crossed, down), up, bias)
            crossed = torch.addcmul(crossed, x, mixed)
        return crossed


class InteractionDCNArch(nn.Module):
    """Crosses the dense vector and the rows into float32[B, (F + 1) D]."""

    def __init__(self, num_sparse_features: int, crossnet: nn.Module) -> None:
        super().__init__()
        self.F = num_sparse_features
        self.crossnet = crossnet

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Map dense float32[B, D] and sparse float32[B, F, D] to float32[B, (F + 1) D]."""
        found: Tensor = self.crossnet(torch.cat([dense, sparse.flatten(1)], dim=1))
        return found


class OverArch(nn.Module):
    """The top layers, of which the last is linear."""

    def __init__(self, in_features: int, layer_sizes: Sequence[int]) -> None:
        super().__init__()
        if len(layer_sizes) < 2:
            raise ConfigError(f"over_arch_layer_sizes needs at least two sizes, got {layer_sizes}")
        last = nn.Linear(layer_sizes[-2], layer_sizes[-1])
        self.model = nn.Sequential(_Mlp(in_features, layer_sizes[:-1]), last)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.model(features)
        return found


class DLRM(nn.Module):
    """TorchRec's DLRM: ``forward(dense_features, sparse_features)`` -> logits float32[B, 1].

    >>> from sparsefleet.torchrec_like import EmbeddingBagConfig, KeyedJaggedTensor
    >>> config = EmbeddingBagConfig(
    ...     name="ads", embedding_dim=4, num_embeddings=1000, feature_names=["ads"]
    ... )
    >>> model = DLRM(EmbeddingBagCollection([config]), 3, [8, 4], [8, 1])
    >>> ids = KeyedJaggedTensor(["ads"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2]))
    >>> model(torch.ones(2, 3), ids).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dense_device: torch.device | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()
        dims = {one.embedding_dim for one in embedding_bag_collection.embedding_bag_configs()}
        if dims != {dense_arch_layer_sizes[-1]}:
            raise ConfigError(
                f"tables have dims {sorted(dims)}, expected the last entry of "
                f"dense_arch_layer_sizes, {dense_arch_layer_sizes[-1]}, for all"
            )
        self.sparse_arch = SparseArch(embedding_bag_collection)
        num_features = len(self.sparse_arch.sparse_feature_names)
        self.dense_arch = DenseArch(dense_in_features, dense_arch_layer_sizes)
        self.inter_arch: nn.Module = InteractionArch(num_features)
        width = dense_arch_layer_sizes[-1] + num_features * (num_features + 1) // 2
        self.over_arch = OverArch(width, over_arch_layer_sizes)

    def forward(self, dense_features: Tensor, sparse_features: Any) -> Tensor:
        """Return logits, float32[B, 1]."""
        dense = self.dense_arch(dense_features)
        logits: Tensor = self.over_arch(self.inter_arch(dense, self.sparse_arch(sparse_features)))
        return logits


class DLRM_DCN(DLRM):  # noqa: N801  TorchRec's name
    """TorchRec's DLRM with the cross net of DCN-V2 instead of the dot products.

    >>> from sparsefleet.torchrec_like import EmbeddingBagConfig, KeyedJaggedTensor
    >>> config = EmbeddingBagConfig(
    ...     name="ads", embedding_dim=4, num_embeddings=1000, feature_names=["ads"]
    ... )
    >>> model = DLRM_DCN(EmbeddingBagCollection([config]), 3, [8, 4], [8, 1], 2, 3)
    >>> ids = KeyedJaggedTensor(["ads"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2]))
    >>> model(torch.ones(2, 3), ids).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dcn_num_layers: int,
        dcn_low_rank_dim: int,
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection,
            dense_in_features,
            dense_arch_layer_sizes,
            over_arch_layer_sizes,
            dense_device,
        )
        num_features = len(self.sparse_arch.sparse_feature_names)
        width = (num_features + 1) * self.sparse_arch.dim
        crossnet = LowRankCrossNet(width, dcn_num_layers, dcn_low_rank_dim)
        self.inter_arch = InteractionDCNArch(num_features, crossnet)
        self.over_arch = OverArch(width, over_arch_layer_sizes)


class DLRMTrain(nn.Module):
    """DLRM and its loss; takes a batch with dense_features, sparse_features and labels.

    Like TorchRec's class, returns the loss and (loss, logits, labels).
    """

    def __init__(self, dlrm_module: DLRM) -> None:
        super().__init__()
        self.model = dlrm_module

    def forward(self, batch: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels.float())
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
