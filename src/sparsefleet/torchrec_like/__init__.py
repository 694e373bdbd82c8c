"""TorchRec's API on tables that grow: change the import and keep the rest of the program."""

from sparsefleet.torchrec_like.collections import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
    load_torchrec_state_dict,
    torchrec_state_dict,
)
from sparsefleet.torchrec_like.dlrm import DLRM, DLRM_DCN, DLRMTrain
from sparsefleet.torchrec_like.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = [
    "DLRM",
    "DLRMTrain",
    "DLRM_DCN",
    "DataType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "load_torchrec_state_dict",
    "torchrec_state_dict",
]
