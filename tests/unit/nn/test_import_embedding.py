from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding, bind, import_embedding, import_embeddings
from sparsefleet.store import LocalStore


class Words(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.words = embedding
        self.head = nn.Linear(3, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids))


def test_model_with_imported_rows_computes_what_the_other_did() -> None:
    before, after = Words(nn.Embedding(50, 3)), Words(SparseEmbedding("words", 3))
    state = before.state_dict()
    assert import_embeddings(after, state) == {"words": 50}
    after.load_state_dict(state, strict=False)
    ids = torch.tensor([[0, 7], [49, 7]])
    assert torch.equal(after.eval()(ids), before(ids))


def test_rows_go_to_the_store_that_the_model_is_bound_to() -> None:
    store, model = LocalStore(), Words(SparseEmbedding("words", 3))
    bind(model, store)
    keys = np.array([5, 2**63 + 1], np.uint64)
    weight = torch.arange(6.0).reshape(2, 3)
    assert import_embedding(model.words, weight, keys=keys) == 2
    np.testing.assert_array_equal(store.pull("words", keys, train=False), weight.numpy())


@pytest.mark.parametrize(
    ("weight", "keys", "message"),
    [
        (torch.zeros(2, 4), None, r"shape \[N, 3\], got \[2, 4\]"),
        (torch.zeros(3), None, r"got \[3\]"),
        (torch.zeros(2, 3), np.arange(3), "2 rows to import but 3 keys"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    weight: torch.Tensor, keys: object, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        import_embedding(SparseEmbedding("words", 3), weight, keys=keys)


def test_a_state_without_weights_for_any_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected one of \['words\.weight'\]"):
        import_embeddings(Words(SparseEmbedding("words", 3)), {"head.bias": torch.zeros(1)})
