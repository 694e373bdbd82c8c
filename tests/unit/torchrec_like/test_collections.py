from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.unit.torchrec_like.networks import DIM, FEATURES, NUM_IDS, SIZE, configs, dense, keyed
from torch import nn

from sparsefleet import Trainer, TrainerConfig, optim
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbeddingBag, bind
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore
from sparsefleet.torchrec_like import (
    DLRM,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
    load_torchrec_state_dict,
    torchrec_state_dict,
)


def collection(**settings: object) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(configs(EmbeddingBagConfig, PoolingType), **settings)


def test_bags_are_pooled_as_embedding_bags_of_torch_do() -> None:
    bags = collection()
    weights = {name: torch.randn(NUM_IDS, DIM) for name in ("people", "goods", "sites")}
    state = {f"embedding_bags.{name}.weight": weight for name, weight in weights.items()}
    assert load_torchrec_state_dict(bags, state) == dict.fromkeys(weights, NUM_IDS)
    ids = keyed(KeyedJaggedTensor)
    found = bags(ids)
    assert found.keys() == ["user", "ads", "tags", "site"]
    for feature, table, mode in (
        ("user", "people", "sum"),
        ("ads", "goods", "mean"),
        ("tags", "goods", "mean"),
        ("site", "sites", "sum"),
    ):
        one = ids[feature]
        wanted = nn.functional.embedding_bag(
            one.values(), weights[table], one.offsets()[:-1], mode=mode
        )
        torch.testing.assert_close(found[feature], wanted)
    groups = KeyedTensor.regroup([found], [["site", "user"]])
    torch.testing.assert_close(groups[0], torch.cat([found["site"], found["user"]], 1))


def test_weighted_ids_scale_their_rows_and_need_sums() -> None:
    config = EmbeddingBagConfig(
        name="goods", embedding_dim=DIM, num_embeddings=NUM_IDS, feature_names=["ads"]
    )
    bags = EmbeddingBagCollection([config], is_weighted=True)
    ids = KeyedJaggedTensor.from_lengths_sync(
        ["ads"], torch.tensor([1, 2]), torch.tensor([2]), torch.tensor([0.5, 2.0])
    )
    rows = bags.embedding_bags["goods"](torch.tensor([1, 2]))
    torch.testing.assert_close(bags(ids)["ads"][0], 0.5 * rows[0] + 2 * rows[1])
    with pytest.raises(ConfigError, match="table 'goods': weighted ids need SUM pooling, got MEAN"):
        collection(is_weighted=True)


def test_features_may_have_batches_of_different_sizes() -> None:
    bags = collection()
    ids = KeyedJaggedTensor(
        FEATURES,
        torch.tensor([1, 2, 3, 4, 5, 6, 7]),
        lengths=torch.tensor([2, 1, 1, 0, 2, 1]),
        stride_per_key_per_rank=[[2], [1], [1], [2]],
        inverse_indices=(FEATURES, torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1]])),
    )
    assert ids.stride() == 3
    assert ids.stride_per_key() == [2, 1, 1, 2]
    assert ids["tags"].lengths().tolist() == [2, 1]
    assert ids["tags"].values().tolist() == [5, 6, 7]
    assert ids.permute([3, 0]).stride_per_key() == [2, 2]
    assert ids.to(torch.device("cpu")).stride_per_key() == [2, 1, 1, 2]
    repeated = KeyedJaggedTensor.from_lengths_sync(
        FEATURES,
        torch.tensor([1, 2, 3, 1, 2, 4, 4, 4, 7, 5, 6, 7]),
        torch.tensor([2, 1, 2, 1, 1, 1, 0, 0, 0, 1, 2, 1]),
    )
    torch.testing.assert_close(bags(ids).values(), bags(repeated).values())
    with pytest.raises(ShapeError, match=r"strides \[1, 1\], .* sum of 3, the number of lengths"):
        KeyedJaggedTensor(
            ["a", "b"], torch.tensor([1]), lengths=torch.tensor([1, 0, 0]), stride_per_key=[1, 1]
        )


def test_the_state_returns_as_it_came_from_torchrec() -> None:
    bags = collection()
    state = {
        f"embedding_bags.{name}.weight": torch.randn(NUM_IDS, DIM)
        for name in ("people", "goods", "sites")
    }
    load_torchrec_state_dict(bags, state)
    found = torchrec_state_dict(bags)
    assert found.keys() == state.keys()
    for name, weight in state.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)
    rows = EmbeddingCollection(
        [EmbeddingConfig(name="a", embedding_dim=2, num_embeddings=9, feature_names=["ads"])]
    )
    assert torchrec_state_dict(rows)["embeddings.a.weight"].shape == (9, 2)


def test_rows_of_each_id_keep_the_lengths() -> None:
    config = EmbeddingConfig(
        name="goods", embedding_dim=DIM, num_embeddings=NUM_IDS, feature_names=["ads"]
    )
    found = EmbeddingCollection([config], need_indices=True)(keyed(KeyedJaggedTensor))
    ids = keyed(KeyedJaggedTensor)["ads"]
    assert found["ads"].values().shape == (len(ids.values()), DIM)
    assert found["ads"].lengths().tolist() == ids.lengths().tolist()
    assert found["ads"].weights().tolist() == ids.values().tolist()


def test_a_feature_of_two_tables_has_two_keys() -> None:
    both = [
        EmbeddingBagConfig(name=name, embedding_dim=2, num_embeddings=9, feature_names=["ads"])
        for name in ("a", "b")
    ]
    assert EmbeddingBagCollection(both)(keyed(KeyedJaggedTensor)).keys() == ["ads@a", "ads@b"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmbeddingBagCollection([]), "at least one table"),
        (lambda: EmbeddingBagCollection([EmbeddingBagConfig(9, 2, "a")]), "feature_names is empty"),
        (lambda: EmbeddingBagCollection([EmbeddingBagConfig(9, 2)]), "must have unique names"),
        (lambda: DLRM(collection(), 3, [5], [4, 1]), r"dims \[8\], expected the last entry of"),
        (
            lambda: load_torchrec_state_dict(collection(), {}),
            "the state has no 'embedding_bags.peo",
        ),
    ],
)
def test_wrong_tables_say_what_is_wrong(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_jagged_tensors_convert_between_their_forms() -> None:
    one = JaggedTensor(torch.tensor([1, 2, 3]), offsets=torch.tensor([0, 0, 3]))
    assert one.lengths().tolist() == [0, 3]
    assert one.to_padded_dense(2).tolist() == [[0, 0], [1, 2]]
    assert one.to_padded_dense(padding_value=-1).tolist() == [[-1, -1, -1], [1, 2, 3]]
    again = JaggedTensor.from_dense(one.to_dense())
    assert again.offsets().tolist() == [0, 0, 3]
    ids = keyed(KeyedJaggedTensor)
    assert ids.stride() == SIZE
    assert sum(ids.length_per_key()) == len(ids.values())
    swapped = ids.permute([1, 0, 3, 2])
    assert swapped.keys() == [FEATURES[at] for at in (1, 0, 3, 2)]
    assert swapped["ads"].values().tolist() == ids["ads"].values().tolist()
    left, right = ids.split([1, 3])
    assert (left.keys(), right.keys()) == (FEATURES[:1], FEATURES[1:])
    joined = KeyedJaggedTensor.concat([left, right])
    assert joined.values().tolist() == ids.values().tolist()
    with pytest.raises(ShapeError, match="2 keys need a multiple of 2 lengths"):
        KeyedJaggedTensor(["a", "b"], torch.arange(3), lengths=torch.tensor([1, 1, 1]))
    with pytest.raises(KeyError, match="no feature 'x'"):
        ids["x"]


def test_a_key_may_be_repeated_as_in_torchrec() -> None:
    ids = keyed(KeyedJaggedTensor)
    twice = ids.permute([1, 0, 1])
    assert twice.keys() == ["ads", "user", "ads"]
    assert twice.stride() == SIZE
    wanted = torch.cat([ids[key].values() for key in ("ads", "user", "ads")])
    assert torch.equal(twice.values(), wanted)
    assert torch.equal(twice["ads"].lengths(), ids["ads"].lengths())


def test_features_of_different_sizes_are_not_mixed_up() -> None:
    one = JaggedTensor(torch.tensor([1]), lengths=torch.tensor([1]))
    three = JaggedTensor(torch.tensor([2, 3, 4]), lengths=torch.tensor([1, 1, 1]))
    with pytest.raises(ShapeError, match=r"same number of examples, got {'a': 1, 'b': 3}"):
        KeyedJaggedTensor.from_jt_dict({"a": one, "b": three})
    with pytest.raises(ShapeError, match="2 keys with stride 3 need 6 lengths, K . B, got 4"):
        KeyedJaggedTensor(["a", "b"], torch.arange(4), lengths=torch.ones(4).long(), stride=3)
    ids = keyed(KeyedJaggedTensor)
    with pytest.raises(ShapeError, match=r"must have different keys, got \['user', .*'user', "):
        KeyedJaggedTensor.concat([ids, keyed(KeyedJaggedTensor, seed=2)])
    own = KeyedJaggedTensor(
        ["a", "b"], torch.arange(4), lengths=torch.ones(4).long(), stride_per_key=[1, 3]
    )
    with pytest.raises(ShapeError, match="batches of different sizes cannot be concatenated"):
        KeyedJaggedTensor.concat([own, ids])
    with pytest.raises(ShapeError, match="'tags': .* batches of different sizes"):
        SparseEmbeddingBag("tags", 2)(own)


def test_a_plan_finds_the_ids_of_each_key_whatever_their_number() -> None:
    bags = collection()
    store = LocalStore()
    bind(bags, store)
    with StepRows(lambda keys, **how: store.pull_many(keys, **how)[0]) as step:
        first = keyed(KeyedJaggedTensor, 2)
        bags(first)
    plan = LookupPlan.learn(step, [first])
    assert len(plan) == len(FEATURES)
    other = keyed(KeyedJaggedTensor, 4)
    found = plan.lookups([other])
    assert found is not None
    wanted = [("people", "user"), ("goods", "ads"), ("goods", "tags"), ("sites", "site")]
    for lookup, (table, feature) in zip(found, wanted, strict=True):
        assert lookup.table == table
        assert lookup.ids.tolist() == other[feature].values().tolist()


def test_dlrm_learns_by_the_trainer() -> None:
    torch.manual_seed(0)
    model = DLRM(collection(), 3, [16, DIM], [16, 1])
    batches = []
    for seed in range(8):
        labels = (dense(seed)[:, :1] > 0).float()
        batches.append(((dense(seed), keyed(KeyedJaggedTensor, seed)), labels))
    loss = nn.functional.binary_cross_entropy_with_logits
    config = TrainerConfig(quiet=True)
    with Trainer(model, loss, optim.Adagrad(lr=0.1), config=config) as trainer:
        before = trainer.evaluate(batches)["loss"]
        trainer.fit(batches, epochs=20)
        assert trainer.evaluate(batches)["loss"] < 0.5 * before


@pytest.mark.parametrize("lengths", [[1, 5], [1, 10**6], [5, -3], [1, 1]], ids=str)
@pytest.mark.parametrize("strides", [None, [2]], ids=["one size", "own sizes"])
@pytest.mark.parametrize("weighted", [True, False])
def test_lengths_that_do_not_match_the_ids_read_nothing_beyond_them(
    lengths: list[int], strides: list[int] | None, weighted: bool
) -> None:
    config = EmbeddingBagConfig(
        name="goods", embedding_dim=2, num_embeddings=9, feature_names=["ads"]
    )
    bags = EmbeddingBagCollection([config], is_weighted=weighted)
    ids = KeyedJaggedTensor(
        ["ads"],
        torch.tensor([1, 2, 3]),
        torch.ones(3),
        lengths=torch.tensor(lengths),
        stride_per_key=strides,
        inverse_indices=None if strides is None else (["ads"], torch.tensor([[0, 1]])),
    )
    with pytest.raises(ShapeError, match=r"lengths sum to .* but there are 3 ids; expected"):
        bags(ids)


def uniform_(weight: torch.Tensor) -> torch.Tensor:
    return weight.fill_(5.0)


@pytest.mark.parametrize(
    ("fill", "low", "high", "num_rows"),
    [
        (None, -0.25, 0.25, 0),
        (partial(nn.init.uniform_, a=-0.25, b=-0.125), -0.25, -0.125, 0),  # as TorchRec's configs
        (nn.init.uniform_, 0.0, 1.0, 0),
        (partial(nn.init.normal_, mean=9.0, std=0.1), 8.0, 10.0, 16),
        (uniform_, 5.0, 5.0, 16),
    ],
)
def test_rows_are_created_at_first_use_unless_a_function_must_fill_them(
    fill: Any, low: float, high: float, num_rows: int
) -> None:
    config = EmbeddingBagConfig(
        name="goods", embedding_dim=4, num_embeddings=16, feature_names=["ads"], init_fn=fill
    )
    bags = EmbeddingBagCollection([config])
    rows = torchrec_state_dict(bags)["embedding_bags.goods.weight"]
    assert low <= rows.min() <= rows.max() <= high
    store = bags.embedding_bags["goods"].store
    assert store is not None
    assert store.info("goods").size == num_rows
