"""The rows of one training step: looked up in the forward pass, with gradients after backward.

In shapes, N is the number of ids, U the number of distinct ids, and D the row width.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.nn.lookup import Address, Inverse, Lookup, distinct_keys
from sparsefleet.nn.pulled_rows import (
    DistinctLeaf,
    DistinctRows,
    Pull,
    PulledRows,
    TableRows,
    distinct_rows,
    plan_rows,
    pull_rows,
)
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from typing_extensions import Self

Gradient = tuple[Keys, Floats]
AnyLeaf = TypeVar("AnyLeaf", "_Leaf", DistinctLeaf)


class _ActiveSteps(threading.local):
    """The steps that this thread has entered, innermost last."""

    def __init__(self) -> None:
        self.steps: list[StepRows] = []


_active = _ActiveSteps()


def active_step() -> StepRows | None:
    """Return the innermost step that this thread has entered, if any."""
    return _active.steps[-1] if _active.steps else None


def is_traced() -> bool:
    """Return whether this thread is tracing a model into a graph, where tensors have no values."""
    step = active_step()
    return step is not None and step.traced


class StepRows:
    """The rows of one step. While the step is active, all lookups on this thread go through it.

    ``pull`` fetches rows (`modes.Mode.pull`, or a store's `pull_many`). In training, it is called
    with only the keys; when no row may be created, also with ``train=False, unknown=...``.
    ``pulled`` holds the rows that were prefetched for this batch; any other lookup does its own
    pull.

    After ``backward()``, `gradients` returns the gradients to push. Not thread-safe: a step belongs
    to the thread that entered it.

    >>> from sparsefleet.nn import SparseEmbedding, bind
    >>> from sparsefleet.store import Constant, LocalStore
    >>> model, store = SparseEmbedding("ads", 2, initializer=Constant(1.0)), LocalStore()
    >>> tables = bind(model, store)
    >>> with StepRows(lambda keys, **how: store.pull_many(keys, **how)[0]) as step:
    ...     model(torch.tensor([7, 9, 7])).sum().backward()
    >>> step.gradients()["ads"]
    (array([7, 9], dtype=uint64), array([[2., 2.],
           [1., 1.]], dtype=float32))
    """

    traced = False
    """True while a model is traced into a graph; tensors then have shapes but no values."""

    def __init__(self, pull: Pull, *, train: bool = True, pulled: PulledRows | None = None) -> None:
        self.lookups: list[Lookup] = []
        """The lookups so far, in order."""
        self._pull = pull
        self._train = train
        self._leaves: list[_Leaf | DistinctLeaf] = []
        self._leaf_of_table: dict[str, _Leaf] = {}
        self._distinct_of_table: dict[str, DistinctLeaf] = {}
        self._planned: dict[Address, list[tuple[TableRows, int]]] = {}
        for rows in pulled.tables.values() if pulled else ():
            for index, lookup in enumerate(rows.lookups):
                self._planned.setdefault(lookup.address(), []).append((rows, index))

    def __enter__(self) -> Self:
        _active.steps.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not _active.steps or _active.steps[-1] is not self:
            raise ConfigError(
                "a StepRows must be exited on the thread that entered it, innermost first"
            )
        _active.steps.pop()

    def look_up(self, lookup: Lookup, *, train: bool) -> torch.Tensor:
        """Return the rows: float32[*ids.shape, D].

        If ``train`` is set and the step trains, the rows take part in autograd; otherwise no row is
        created.
        """
        train = train and self._train
        places = self._places_of(lookup)
        if places:
            found = self._planned_rows(places, train)
        else:
            rows = pull_rows([lookup], self._pull, train=train).tables[lookup.table]
            found = self._added(_Leaf(rows)).take(0) if train else rows.gather()
        return found if lookup.ids.dim() == 1 else found.view(*lookup.ids.shape, lookup.dim)

    def look_up_distinct(self, lookup: Lookup, *, train: bool) -> DistinctRows:
        """Return each distinct row once, for an operator that reads the rows in place."""
        train = train and self._train
        places = self._places_of(lookup)
        if not places:
            rows, indexes = pull_rows([lookup], self._pull, train=train).tables[lookup.table], [0]
        else:
            rows, indexes = places[0][0], [index for _, index in places]
        if not train:
            return distinct_rows(rows, indexes[0])
        leaf = self._distinct_of_table.get(rows.table) if places else None
        if leaf is None:
            leaf = self._added(DistinctLeaf(rows))
            if places:
                self._distinct_of_table[rows.table] = leaf
        return leaf.take(indexes)

    def gradients(self) -> dict[str, Gradient]:
        """Return, by table, the distinct keys uint64[U] and their summed gradients float32[U, D].

        Call it after ``backward()``. Keys that no loss depends on are omitted.
        """
        parts: dict[str, list[Gradient]] = {}
        for leaf in self._leaves:
            gradient = leaf.gradient()
            if gradient is not None and len(gradient[0]):
                parts.setdefault(leaf.table, []).append(gradient)
        return {table: merge_gradients(found) for table, found in parts.items()}

    @property
    def had_backward(self) -> bool:
        """Return whether a loss depended on any lookup, even if all its ids were padding."""
        return any(leaf.has_gradient for leaf in self._leaves)

    def _places_of(self, lookup: Lookup) -> list[tuple[TableRows, int]]:
        """Record the lookup; return where prefetched lookups of the same ids are."""
        self.lookups.append(lookup)
        planned = self._planned.get(lookup.address()) if self._planned else None
        if planned is None:
            return []
        return [place for place in planned if place[0].lookups[place[1]].matches(lookup)]

    def _planned_rows(self, places: list[tuple[TableRows, int]], train: bool) -> torch.Tensor:
        rows, index = places[0]
        if not train:
            return rows.gather_one(index)
        leaf = self._leaf_of_table.get(rows.table)
        if leaf is None:
            leaf = self._leaf_of_table[rows.table] = self._added(_Leaf(rows))
        for _, index in places:
            if leaf.is_free(index):
                return leaf.take(index)
        # Looked up more often than planned (a recomputed forward pass): hand out the pulled rows
        # again as a separate tensor, since the caller may have written into the first.
        [again] = plan_rows([rows.lookups[index]]).tables.values()
        return self._added(_Leaf(again, rows.gather_one(index))).take(0)

    def _added(self, leaf: AnyLeaf) -> AnyLeaf:
        self._leaves.append(leaf)
        return leaf


class _Leaf:
    """The rows of some lookups in a table as one leaf tensor of autograd."""

    __slots__ = ("_inverse", "_keys", "_lookups", "_pieces", "_values", "table")

    def __init__(self, rows: TableRows, values: torch.Tensor | None = None) -> None:
        self.table = rows.table
        self._lookups = rows.lookups
        self._keys = rows.keys
        self._inverse: Inverse = rows.inverse
        self._values = (rows.gather() if values is None else values).requires_grad_()
        # Autograd does not treat the pieces as views, so callers may modify them in place like the
        # output of nn.Embedding; each piece is handed out once and the whole is never exposed.
        # Splitting also gives the leaf its own gradient buffer; through a plain view it would share
        # the buffer with every other consumer of that gradient.
        self._pieces: list[torch.Tensor | None] = list(
            torch.unsafe_split_with_sizes(self._values, rows.sizes)
        )

    def is_free(self, index: int) -> bool:
        return self._pieces[index] is not None

    @property
    def has_gradient(self) -> bool:
        return self._values.grad is not None

    def take(self, index: int) -> torch.Tensor:
        """Return the rows of one lookup, float32[n, D]; each is handed out once."""
        piece = self._pieces[index]
        assert piece is not None
        self._pieces[index] = None
        return piece

    def gradient(self) -> Gradient | None:
        """Return the distinct keys of the lookups taken, and their summed gradients, if any."""
        grad = self._values.grad
        if grad is None:
            return None
        rows = np.ascontiguousarray((grad.detach() if grad.requires_grad else grad).numpy())
        made = [piece is None for piece in self._pieces]
        if all(made):
            return sum_by_key(self._keys, self._inverse, rows)
        ends = np.cumsum([lookup.ids.numel() for lookup in self._lookups])
        pieces = np.split(rows, ends[:-1])
        kept = [index for index, was_made in enumerate(made) if was_made]
        [found] = distinct_keys([[self._lookups[index] for index in kept]])
        return sum_by_key(
            found.keys, found.inverse, np.concatenate([pieces[index] for index in kept])
        )


def sum_by_key(keys: Keys, inverse: Inverse, rows: Floats) -> Gradient:
    """Sum ``rows`` (float32[N, D]) for each of the U keys, in order of occurrence."""
    if len(keys) == len(inverse):  # no repeats or padding, so each row is its key's sum
        return keys, rows
    sums = np.empty((len(keys), rows.shape[1]), np.float32)
    _core.sum_rows(rows, inverse, sums)
    return keys, sums


def merge_gradients(parts: Sequence[Gradient]) -> Gradient:
    """Merge gradients of one table from several lookups into one per key."""
    if len(parts) == 1:
        return parts[0]
    keys, inverse = _core.unique(np.concatenate([keys for keys, _ in parts]))
    return sum_by_key(keys, inverse, np.concatenate([sums for _, sums in parts]))
