from __future__ import annotations

import copy
import logging
import pickle
import threading

import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding, apply_gradients, discard_gradients, sparse_module
from sparsefleet.store import Constant, Evict, LocalStore


def embedding(name: str = "ads", **settings: object) -> SparseEmbedding:
    settings = {"initializer": Constant(1.0), "optimizer": optim.SGD(lr=0.5), **settings}
    return SparseEmbedding(name, 2, **settings)


def values(module: SparseEmbedding, *ids: int) -> list[float]:
    """The first value of each row, read without training."""
    with torch.no_grad():
        return module(torch.tensor(ids))[:, 0].tolist()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3), (2, 1, 3, 2)])
def test_ids_of_any_shape_give_rows_in_that_shape(shape: tuple[int, ...]) -> None:
    ids = torch.randint(1, 9, shape)
    out = embedding()(ids)
    assert out.shape == (*shape, 2)
    assert out.dtype is torch.float32
    assert out.requires_grad


def test_ids_that_are_not_contiguous_are_read_in_their_order() -> None:
    module = embedding()
    module(torch.tensor([[1, 2], [3, 4]]).t()[0]).sum().backward()
    apply_gradients(module)
    assert values(module, 1, 2, 3) == [0.5, 0.0, 0.5]


def test_ragged_ids_give_the_rows_of_the_values() -> None:
    out = embedding()((torch.tensor([1, 2, 3]), torch.tensor([0, 1])))
    assert out.shape == (3, 2)


def test_negative_ids_are_keys_too() -> None:
    module = embedding(padding_idx=-1)
    module(torch.tensor([-1, -2, -(2**63)])).sum().backward()
    assert apply_gradients(module).applied == 2
    assert values(module, -1, -2, -(2**63)) == [0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([1], dtype=torch.int16), "got torch.int16; convert them with .long()"),
        (torch.tensor([1.0]), "got torch.float32"),
        ([1, 2], "got list; convert it with torch.as_tensor"),
        (torch.tensor([1], device="meta"), "got a tensor on meta; move it with .cpu()"),
    ],
)
def test_ids_of_another_kind_are_refused_by_name(ids: object, message: str) -> None:
    with pytest.raises(
        ShapeError, match="table 'ads': ids must be an int64 or int32 tensor"
    ) as caught:
        embedding()(ids)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding_idx": 2**63}, "padding_idx must be None or an int64"),
        ({"padding_idx": True}, "padding_idx must be None or an int64"),
        ({"unknown": "nothing"}, "`unknown` must be 'zeros' or 'initial'"),
        ({"seed": -1}, "TableSpec.seed"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SparseEmbedding("ads", 2, **settings)


def test_module_has_no_parameters_and_shows_what_it_is() -> None:
    module = SparseEmbedding("ads", 2, padding_idx=0)
    assert list(module.parameters()) == []
    assert repr(module) == "SparseEmbedding('ads', dim=2, optimizer=None, padding_idx=0)"
    module(torch.tensor([1]))
    assert "optimizer=Adagrad(lr=0.01" in repr(module)


def test_spec_takes_the_default_optimizer_unless_it_has_its_own() -> None:
    own = embedding(eviction=Evict(min_count=3), seed=5).spec(optim.Adam())
    assert (own.optimizer, own.eviction.min_count, own.seed) == (optim.SGD(lr=0.5), 3, 5)
    assert SparseEmbedding("ads", 2).spec(optim.Adam()).optimizer == optim.Adam()
    assert SparseEmbedding("ads", 2).spec().optimizer == optim.Adagrad()


def test_several_forwards_add_up_until_gradients_are_applied() -> None:
    module = embedding()
    for _ in range(2):
        module(torch.tensor([1, 2, 1])).sum().backward()
    assert apply_gradients(module).applied == 2
    assert values(module, 1, 2) == [-1.0, 0.0]
    assert apply_gradients(module).applied == 0


def test_discarded_gradients_change_nothing() -> None:
    module = embedding()
    module(torch.tensor([1])).sum().backward()
    discard_gradients(module)
    assert apply_gradients(module).applied == 0
    assert values(module, 1) == [1.0]


def test_modules_with_one_store_share_rows_and_are_pushed_together() -> None:
    store = LocalStore()
    model = nn.ModuleList([embedding(store=store), embedding(store=store)])
    (model[0](torch.tensor([1])) + model[1](torch.tensor([1]))).sum().backward()
    assert apply_gradients(model).applied == 1
    assert values(model[0], 1) == values(model[1], 1) == [0.0]


def test_evaluation_creates_no_rows() -> None:
    store = LocalStore()
    module = embedding(store=store).eval()
    assert not module(torch.tensor([1, 2])).requires_grad
    with torch.no_grad():
        module.train()(torch.tensor([3]))
    with torch.inference_mode():
        module(torch.tensor([4]))
    assert store.stats()[0]["table.ads.rows"] == 0
    assert values(embedding(unknown="initial"), 7) == [1.0]
    assert values(embedding(), 7) == [0.0]


def test_copies_share_the_rows_but_not_the_gradients() -> None:
    module = embedding()
    early = copy.deepcopy(module)  # before there is a store
    module(torch.tensor([1])).sum().backward()
    late = copy.deepcopy(nn.Sequential(module))[0]
    assert early.store is late.store is module.store
    assert apply_gradients(late).applied == 0
    assert apply_gradients(module).applied == 1
    assert values(early, 1) == values(late, 1) == [0.5]


def test_module_with_rows_is_not_pickled_and_says_what_to_do() -> None:
    module = embedding(padding_idx=3)
    assert pickle.loads(pickle.dumps(module)).padding_idx == 3
    module(torch.tensor([1]))
    with pytest.raises(ConfigError, match=r"table 'ads' cannot be pickled.*state_dict"):
        pickle.dumps(module)


def test_forgotten_gradients_are_mentioned_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparse_module, "_MANY_PENDING", 3)
    module = embedding()
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            module(torch.tensor([1]))
    assert [record.getMessage()[:23] for record in caplog.records] == ["table 'ads': 3 training"]


def test_copies_train_in_threads_of_their_own_on_the_same_rows() -> None:
    module = embedding(optimizer=optim.SGD(lr=1.0))
    steps = 50

    def train(replica: SparseEmbedding) -> None:
        for _ in range(steps):
            replica(torch.tensor([1, 2, 1])).sum().backward()
            apply_gradients(replica)

    threads = [threading.Thread(target=train, args=(copy.deepcopy(module),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert values(module, 1, 2) == [1.0 - 2 * 3 * steps, 1.0 - 3 * steps]
