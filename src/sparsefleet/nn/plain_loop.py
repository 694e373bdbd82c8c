"""Training loops without steps: forward, backward, apply_gradients."""

from __future__ import annotations

from torch import nn

from sparsefleet.nn.binding import sparse_modules
from sparsefleet.nn.step_rows import Gradient, merge_gradients
from sparsefleet.store import PushResult, Store


def apply_gradients(model: nn.Module) -> PushResult:
    """Pushes what backward() left for the sparse modules of ``model``, and forgets it.

    The counterpart of ``optimizer.step()`` for tables, in loops of your own without fleet: one
    request a server. Lookups of several forward passes add up, as gradients of parameters do.
    In a loop with steps (`fleet.step`, `Trainer`) there is nothing to apply.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbedding
    >>> ads = SparseEmbedding("ads", 4)
    >>> ads(torch.tensor([1, 2, 1])).sum().backward()
    >>> apply_gradients(ads)
    PushResult(applied=2, rejected_non_finite=0, not_admitted=0)
    >>> apply_gradients(ads)
    PushResult(applied=0, rejected_non_finite=0, not_admitted=0)
    """
    stores: dict[int, Store] = {}
    found: dict[int, dict[str, list[Gradient]]] = {}
    for module in sparse_modules(model):
        gradients = module.take_gradients()
        store = module.store
        if not gradients or store is None:
            continue
        stores[id(store)] = store
        parts = found.setdefault(id(store), {})
        for table, gradient in gradients.items():
            parts.setdefault(table, []).append(gradient)
    totals = [0, 0, 0]
    for key, tables in found.items():
        merged = {table: merge_gradients(parts) for table, parts in tables.items()}
        result = stores[key].push_many(merged, unique=True)
        totals = [total + part for total, part in zip(totals, result, strict=True)]
    return PushResult(*totals)


def discard_gradients(model: nn.Module) -> None:
    """Forgets what forward and backward left for the sparse modules of ``model``.

    The counterpart of ``optimizer.zero_grad()``, for a step that is not to be applied.
    """
    for module in sparse_modules(model):
        module.take_gradients()
