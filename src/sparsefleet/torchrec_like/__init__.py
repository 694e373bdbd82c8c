"""TorchRec's API on growing tables: change the import, keep the program."""

from sparsefleet.torchrec_like.collections import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
    load_torchrec_state_dict,
)
from sparsefleet.torchrec_like.dlrm import DLRM, DLRMTrain
from sparsefleet.torchrec_like.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = [
    "DLRM",
    "DLRMTrain",
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
]
