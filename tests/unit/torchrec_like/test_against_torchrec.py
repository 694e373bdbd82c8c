"""Equal outputs and gradients for equal weights, where TorchRec is installed."""

from __future__ import annotations

import importlib.util
import warnings
from types import SimpleNamespace

import pytest
import torch
from tests.unit.torchrec_like.networks import DIM, configs, dense, keyed

from sparsefleet.nn.binding import sparse_modules
from sparsefleet.torchrec_like import (
    DLRM,
    DLRM_DCN,
    DLRMTrain,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    PoolingType,
    load_torchrec_state_dict,
    torchrec_state_dict,
)

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torchrec") is None,
        reason="torchrec is not installed (docs/coming_from_torchrec.md)",
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def theirs() -> SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrec
        from torchrec.models import dlrm
        from torchrec.modules.embedding_configs import PoolingType as TheirPooling
    return SimpleNamespace(
        kjt=torchrec.KeyedJaggedTensor,
        bags=torchrec.EmbeddingBagCollection,
        config=torchrec.EmbeddingBagConfig,
        dlrm=dlrm.DLRM,
        dcn=dlrm.DLRM_DCN,
        pooling=TheirPooling,
    )


@pytest.mark.parametrize("their_ids", [False, True], ids=["our_ids", "their_ids"])
def test_dlrm_has_the_outputs_and_gradients_of_torchrec(
    theirs: SimpleNamespace, their_ids: bool
) -> None:
    torch.manual_seed(0)
    wanted = theirs.dlrm(
        theirs.bags(tables=configs(theirs.config, theirs.pooling)), 3, [16, DIM], [16, 1]
    )
    ours = DLRM(
        EmbeddingBagCollection(configs(EmbeddingBagConfig, PoolingType)), 3, [16, DIM], [16, 1]
    )
    load_torchrec_state_dict(ours, wanted.state_dict())
    found = ours(dense(), keyed(theirs.kjt if their_ids else KeyedJaggedTensor))
    right = wanted(dense(), keyed(theirs.kjt))
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
    found.square().sum().backward()
    right.square().sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted.get_parameter(name).grad)
    bags = wanted.sparse_arch.embedding_bag_collection.embedding_bags
    for module in sparse_modules(ours):
        keys, sums = module.take_gradients()[module.name]
        gradient = bags[module.name].weight.grad
        torch.testing.assert_close(torch.from_numpy(sums), gradient[keys.astype("int64")])


def test_their_network_takes_our_tables(theirs: SimpleNamespace) -> None:
    torch.manual_seed(0)
    wanted = theirs.dlrm(
        theirs.bags(tables=configs(theirs.config, theirs.pooling)), 3, [16, DIM], [16, 1]
    )
    bags = EmbeddingBagCollection(configs(theirs.config, theirs.pooling))
    mixed = theirs.dlrm(bags, 3, [16, DIM], [16, 1])
    load_torchrec_state_dict(mixed, wanted.state_dict())
    torch.testing.assert_close(
        mixed(dense(), keyed(KeyedJaggedTensor)), wanted(dense(), keyed(theirs.kjt))
    )
    batch = SimpleNamespace(
        dense_features=dense(), sparse_features=keyed(theirs.kjt), labels=torch.ones(6)
    )
    loss, (_, logits, _) = DLRMTrain(mixed)(batch)
    assert loss.item() > 0
    assert logits.shape == (6,)


def test_the_network_with_cross_layers_is_equal_and_its_state_goes_both_ways(
    theirs: SimpleNamespace,
) -> None:
    torch.manual_seed(0)
    sizes = (3, [16, DIM], [16, 1], 2, 3)
    wanted = theirs.dcn(theirs.bags(tables=configs(theirs.config, theirs.pooling)), *sizes)
    ours = DLRM_DCN(EmbeddingBagCollection(configs(EmbeddingBagConfig, PoolingType)), *sizes)
    load_torchrec_state_dict(ours, wanted.state_dict())
    right = wanted(dense(), keyed(theirs.kjt))
    torch.testing.assert_close(ours(dense(), keyed(theirs.kjt)), right, rtol=1e-5, atol=1e-6)
    again = theirs.dcn(theirs.bags(tables=configs(theirs.config, theirs.pooling)), *sizes)
    again.load_state_dict(torchrec_state_dict(ours))
    torch.testing.assert_close(again(dense(), keyed(theirs.kjt)), right, rtol=0, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_of_different_sizes_and_weights_are_pooled_as_torchrec_does(
    theirs: SimpleNamespace, weighted: bool
) -> None:
    torch.manual_seed(0)
    tables = [
        theirs.config(name="a", embedding_dim=DIM, num_embeddings=9, feature_names=["x", "y"])
    ]
    wanted = theirs.bags(tables=tables, is_weighted=weighted)
    ours = EmbeddingBagCollection(tables, is_weighted=weighted)
    load_torchrec_state_dict(ours, wanted.state_dict())
    ids = theirs.kjt(
        keys=["x", "y"],
        values=torch.tensor([1, 2, 3, 4]),
        weights=torch.rand(4) if weighted else None,
        lengths=torch.tensor([2, 0, 2]),
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=(["x", "y"], torch.tensor([[1, 0, 0], [0, 0, 0]])),
    )
    torch.testing.assert_close(ours(ids).values(), wanted(ids).values())
