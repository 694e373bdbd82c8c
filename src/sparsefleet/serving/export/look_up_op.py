"""The operator `sparsefleet::look_up`, which a graph calls to request rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sparsefleet.errors import ConfigError
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.serving.export.keyed_rows import Tables

__all__ = [
    "TracedStep",
    "looking_up",
]

# The first version whose graph files load without unpickling and whose modules can omit checks.
_WANTED = (2, 9)


def _require_torch(version: str = torch.__version__) -> None:
    """Raise ConfigError if torch is too old.

    >>> _require_torch("2.4.1+cpu")
    Traceback (most recent call last):
    ...
    sparsefleet.errors.ConfigError: exported models need torch >= 2.9, found 2.4.1+cpu
    """
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < _WANTED:
        wanted = ".".join(map(str, _WANTED))
        raise ConfigError(f"exported models need torch >= {wanted}, found {version}")


_require_torch()  # an older torch fails below with a less helpful error


class _RowsAtHand(threading.local):
    """The tables passed to `looking_up` blocks that are open in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tables] = []


_at_hand = _RowsAtHand()


@contextmanager
def looking_up(tables: Tables) -> Iterator[None]:
    """Let graphs run by this thread find rows in these tables within the `with` block."""
    _at_hand.stack.append(tables)
    try:
        yield
    finally:
        _at_hand.stack.pop()


# Rows do not depend on ids alone. Without this tag, lookups of constant ids would be evaluated
# while a graph is being recorded.
@torch.library.custom_op(
    "sparsefleet::look_up", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _look_up(ids: Tensor, table: str, dim: int, padding_id: int | None, unknown: str) -> Tensor:
    """Return the rows of `ids` (int64): float32[*ids.shape, dim]."""
    del dim  # used only to infer the shape before rows exist
    rows = _at_hand.stack[-1].get(table) if _at_hand.stack else None
    if rows is None:
        raise ConfigError(
            f"the graph looks up rows of table '{table}', but none are available; load the model "
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
    """The lookups made while a graph is being recorded; each becomes an operator of the graph."""

    traced = True

    def __init__(self) -> None:
        super().__init__(_no_pull, train=False)

    def look_up(self, lookup: Lookup, *, train: bool) -> Tensor:
        """Return a placeholder for the rows: float32[*ids.shape, D]."""
        del train
        rows: Tensor = _look_up(
            lookup.ids, lookup.table, lookup.dim, lookup.padding_idx, lookup.unknown
        )
        return rows


def _no_pull(*_: object, **__: object) -> dict[str, np.ndarray]:
    raise AssertionError("rows cannot be pulled while a graph is being recorded")
