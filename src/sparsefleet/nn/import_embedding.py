"""Imports the weights of torch embeddings into tables.

In shapes, N is the number of rows and D the row width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.store import Rows
from sparsefleet.store.arrays import as_keys

__all__ = ["import_embedding", "import_embeddings"]

_CHUNK_ROWS = 65536


def import_embedding(module: SparseModule, weight: Tensor, *, keys: Any = None) -> int:
    """Set rows of the module's table to `weight` (float[N, D]); return N.

    keys: the id of each row, int64[N]; None means 0 .. N - 1, as in `nn.Embedding`. Existing rows
    with these ids are overwritten and lose their optimizer state; other rows are untouched. In a
    job, call it on exactly one worker.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbedding
    >>> words = SparseEmbedding("words", 4)
    >>> before = nn.Embedding(10, 4)
    >>> import_embedding(words, before.weight)
    10
    >>> bool((words(torch.tensor([7])) == before(torch.tensor([7]))).all())
    True
    """
    values = weight.detach().cpu().float().numpy()
    if values.ndim != 2 or values.shape[1] != module.dim:
        raise ShapeError(
            f"table '{module.name}': weights to import must have shape [N, {module.dim}], got "
            f"{list(values.shape)}"
        )
    ids = np.arange(len(values), dtype=np.uint64)
    if keys is not None:
        ids = as_keys(module.name, keys).reshape(-1)
    if len(ids) != len(values):
        raise ShapeError(
            f"table '{module.name}': got {len(values)} rows to import but {len(ids)} keys; "
            "expected one key per row"
        )
    module.home.open(module.spec)
    store = module.home.store
    assert store is not None
    for begin in range(0, len(ids), _CHUNK_ROWS):
        part = slice(begin, begin + _CHUNK_ROWS)
        state = np.empty((len(ids[part]), 0), np.float32)
        counters = np.empty((len(ids[part]), 0), np.uint32)
        store.import_rows(module.name, Rows(ids[part], values[part], state, counters))
    return len(ids)


def import_embeddings(model: nn.Module, state: Mapping[str, Any]) -> dict[str, int]:
    """Fill the tables of a model from the `state_dict` of a model that uses `nn.Embedding`.

    A sparse module at `path` takes the tensor `<path>.weight`. Returns the number of rows per path.
    Load the rest of the state with `model.load_state_dict(state, strict=False)`.
    """
    imported = {}
    for path, module in model.named_modules():
        name = f"{path}.weight" if path else "weight"
        if isinstance(module, SparseModule) and isinstance(state.get(name), Tensor):
            imported[path] = import_embedding(module, state[name])
    if not imported:
        wanted = [
            f"{path}.weight" for path, m in model.named_modules() if isinstance(m, SparseModule)
        ]
        raise ConfigError(
            f"the state has no weights for any table of the model: expected one of {wanted}, found "
            f"{sorted(state)[:20]}"
        )
    return imported
