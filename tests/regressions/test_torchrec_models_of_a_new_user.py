"""Mistakes in models that come from TorchRec, and the errors that name the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsefleet.errors import ConfigError
from sparsefleet.torchrec_like import (
    DLRM,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    load_torchrec_state_dict,
)


def config(**changed: Any) -> EmbeddingBagConfig:
    fields = {
        "name": "ads",
        "embedding_dim": 4,
        "num_embeddings": 10,
        "feature_names": ["shown"],
    }
    return EmbeddingBagConfig(**{**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"feature_names": "shown"}, r"feature_names must be a list, .*; pass \['shown'\]"),
        ({"num_embeddings": 0}, "num_embeddings must be an int >= 1, got 0"),
        ({"data_type": "FP32"}, r"data_type must be DataType\.FP32, .*, got 'FP32'"),
        ({"pooling": "SUM"}, r"pooling must be PoolingType\.SUM or .*, got 'SUM'"),
        ({"name": "keys"}, r"nn\.ModuleDict does not accept this name .*; rename the table"),
        ({"name": "ads.old"}, r"nn\.ModuleDict does not accept this name .*; rename the table"),
    ],
)
def test_a_wrong_field_of_a_table_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"table '{changed.get('name', 'ads')}': {message}"):
        EmbeddingBagCollection([config(**changed)])


def test_one_config_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got one EmbeddingBagConfig: pass \[config\]"):
        EmbeddingBagCollection(config())  # type: ignore[arg-type]


def test_a_config_without_pooling_is_pointed_to_its_collection() -> None:
    plain = EmbeddingConfig(num_embeddings=5, embedding_dim=4, name="ads", feature_names=["shown"])
    with pytest.raises(ConfigError, match="needs an EmbeddingBagConfig, .* EmbeddingCollection"):
        EmbeddingBagCollection([plain])  # type: ignore[list-item]


@pytest.mark.parametrize("collection", [EmbeddingBagCollection, EmbeddingCollection])
@pytest.mark.parametrize("features", [torch.tensor([1, 2]), {"shown": torch.tensor([1])}])
def test_features_that_are_not_jagged_are_refused(collection: Any, features: object) -> None:
    with pytest.raises(ConfigError, match="the features must be a KeyedJaggedTensor, got a"):
        collection([config()])(features)


def model() -> DLRM:
    return DLRM(EmbeddingBagCollection([config()]), 3, [8, 4], [8, 1])


def state_of(source: DLRM) -> dict[str, torch.Tensor]:
    tensors = {k: v.clone() for k, v in source.state_dict().items() if isinstance(v, torch.Tensor)}
    path = "sparse_arch.embedding_bag_collection.embedding_bags.ads.weight"
    return {**tensors, path: torch.ones(10, 4)}


def test_a_state_that_does_not_match_changes_nothing() -> None:
    loaded = model()
    before = state_of(loaded)
    with pytest.raises(ConfigError, match=r"missing keys none, unexpected keys \['extra'\]"):
        load_torchrec_state_dict(loaded, {**state_of(model()), "extra": torch.ones(1)})
    assert all(torch.equal(value, before[key]) for key, value in state_of(loaded).items())


def test_a_prefix_in_a_state_is_named() -> None:
    state = {f"module.{key}": value for key, value in state_of(model()).items()}
    with pytest.raises(ConfigError, match=r"; remove the prefix 'module\.' from its keys$"):
        load_torchrec_state_dict(model(), state)


def test_a_matching_state_is_loaded() -> None:
    source = model()
    ids = KeyedJaggedTensor.from_lengths_sync(["shown"], torch.tensor([1, 2]), torch.tensor([2]))
    loaded = model()
    assert load_torchrec_state_dict(loaded, state_of(source)) == {"ads": 10}
    load_torchrec_state_dict(source, state_of(source))
    numbers = torch.rand(1, 3)
    assert torch.equal(loaded(numbers, ids), source(numbers, ids))
