"""The operator `sparsefleet::look_up`: how a graph asks for rows, wherever they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sparsefleet.errors import ConfigError
from sparsefleet.export.row_source import Tables
from sparsefleet.export.torch_version import require_torch
from sparsefleet.nn import Lookup, StepRows

__all__ = ["TracedStep", "looking_up"]

require_torch()  # an older one fails below in its own words


class _RowsAtHand(threading.local):
    """The tables this thread looks up in, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tables] = []


_at_hand = _RowsAtHand()


@contextmanager
def looking_up(tables: Tables) -> Iterator[None]:
    """While it lasts, graphs run by this thread find rows in these tables."""
    _at_hand.stack.append(tables)
    try:
        yield
    finally:
        _at_hand.stack.pop()


# Rows are not a function of ids alone. Without this tag, lookups of ids that never change would
# be carried out while a graph is recorded.
@torch.library.custom_op(
    "sparsefleet::look_up", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _look_up(ids: Tensor, table: str, dim: int, padding_id: int | None, unknown: str) -> Tensor:
    """The rows of `ids` (int64): float32[*ids.shape, dim]."""
    del dim  # for those who need the shape before there are rows
    rows = _at_hand.stack[-1].get(table) if _at_hand.stack else None
    if rows is None:
        raise ConfigError(
            f"the graph looks up rows of table '{table}', but none are at hand: load the model "
            "with sparsefleet.Predictor or load_inference_model"
        )
    found = rows.look_up(
        ids.numpy(),
        padding_id=padding_id,
        unknown="initial" if unknown == "initial" else "zeros",
    )
    return torch.from_numpy(np.ascontiguousarray(found))


@_look_up.register_fake
def _shape_of_rows(
    ids: Tensor, table: str, dim: int, padding_id: int | None, unknown: str
) -> Tensor:
    del table, padding_id, unknown
    return ids.new_empty((*ids.shape, dim), dtype=torch.float32)


class TracedStep(StepRows):
    """A step in which lookups become operators of the graph that is being recorded."""

    traced = True

    def __init__(self) -> None:
        super().__init__(_no_pull, train=False)

    def look_up(self, lookup: Lookup, *, train: bool) -> Tensor:
        """The rows to be: float32[*ids.shape, D]."""
        del train
        rows: Tensor = _look_up(
            lookup.ids, lookup.table, lookup.dim, lookup.padding_id, lookup.unknown
        )
        return rows


def _no_pull(*_: object, **__: object) -> dict[str, np.ndarray]:
    raise AssertionError("nothing is pulled while a graph is recorded")
