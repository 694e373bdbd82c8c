"""Which lookups a batch will cause, before its forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store.store import Unknown

Path = tuple[Any, ...]


class _View(NamedTuple):
    """How ids lie in the memory of a batch tensor: of this size and stride, from this offset on."""

    of_shape: torch.Size
    of_stride: tuple[int, ...]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def apply(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if tensor.shape != self.of_shape or tensor.stride() != self.of_stride:
            return None
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


class _Entry(NamedTuple):
    """A lookup seen in the step the plan was learnt from."""

    path: Path
    view: _View | None
    """None: the batch tensor itself, whatever its shape"""
    table: str
    dim: int
    padding_id: int | None
    unknown: Unknown


class LookupPlan:
    """Which tensors of a batch, or views of them, feed which lookups; learnt from one step.

    With it the rows of a batch are pulled before its forward pass, all in one request. Lookups
    of ids that the forward pass computes are not in the batch, hence not in the plan: they
    cost a request of their own.

    >>> from sparsefleet.nn import SparseEmbedding, bind
    >>> from sparsefleet.store import LocalStore
    >>> model, store = SparseEmbedding("ads", 2), LocalStore()
    >>> tables = bind(model, store)
    >>> batch = {"ads": torch.tensor([[7, 9]]), "clicks": torch.tensor([1.0])}
    >>> with StepRows(lambda keys, **how: store.pull_many(keys, **how)[0]) as step:
    ...     rows = model(batch["ads"][:, 1])
    >>> plan = LookupPlan.learn(step, batch)
    >>> plan.lookups({"ads": torch.tensor([[3, 5]]), "clicks": torch.tensor([0.0])})[0].ids
    tensor([5])
    >>> plan.lookups({"ads": torch.tensor([[3, 5, 8]])}) is None
    True
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: tuple[_Entry, ...]) -> None:
        self._entries = entries

    @staticmethod
    def learn(step: StepRows, batch: Any) -> LookupPlan:
        """What ``step``, whose input was ``batch``, looked up.

        A batch is a tensor, or tuples, lists and dicts of tensors, nested as you like.
        """
        tensors = list(_id_tensors(batch, ()))
        entries = []
        for lookup in step.lookups:
            place = _find(tensors, lookup.ids)
            if place is not None:
                path, view = place
                entries.append(
                    _Entry(path, view, lookup.table, lookup.dim, lookup.padding_id, lookup.unknown)
                )
        return LookupPlan(tuple(entries))

    def __len__(self) -> int:
        return len(self._entries)

    def lookups(self, batch: Any) -> list[Lookup] | None:
        """The lookups that ``batch`` will cause; None if it is laid out in another way.

        A tensor that is looked up whole may have any shape; one of which slices are looked up
        must have the shape and strides it had when the plan was learnt.
        """
        found = []
        for entry in self._entries:
            ids = _at(batch, entry.path)
            if ids is not None and entry.view is not None:
                ids = entry.view.apply(ids)
            if ids is None:
                return None
            found.append(
                Lookup(
                    entry.table,
                    entry.dim,
                    ids,
                    padding_id=entry.padding_id,
                    unknown=entry.unknown,
                )
            )
        return found


def _id_tensors(part: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    if isinstance(part, torch.Tensor):
        if _holds_ids(part):
            yield path, part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from _id_tensors(value, (*path, key))
    elif isinstance(part, (tuple, list)):
        for index, value in enumerate(part):
            yield from _id_tensors(value, (*path, index))


def _at(batch: Any, path: Path) -> torch.Tensor | None:
    part = batch
    try:
        for key in path:
            part = part[key]
    except (LookupError, TypeError):
        return None
    return part if isinstance(part, torch.Tensor) and _holds_ids(part) else None


def _holds_ids(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.int64 and tensor.is_cpu and tensor.layout is torch.strided


def _find(
    tensors: list[tuple[Path, torch.Tensor]], ids: torch.Tensor
) -> tuple[Path, _View | None] | None:
    """Where in the batch ``ids`` come from: a tensor as it is, else a view of one."""
    for path, tensor in tensors:
        if tensor is ids:
            return path, None
    if ids.numel() == 0:  # has no memory to know it by
        return None
    for path, tensor in tensors:
        if (
            tensor.data_ptr() == ids.data_ptr()
            and tensor.shape == ids.shape
            and tensor.stride() == ids.stride()
        ):
            return path, None
    for path, tensor in tensors:
        view = _view_in(tensor, ids)
        if view is not None:
            return path, view
    return None


def _view_in(tensor: torch.Tensor, ids: torch.Tensor) -> _View | None:
    """How ``ids`` lie within the elements of ``tensor``, if they do."""
    if tensor.untyped_storage().data_ptr() != ids.untyped_storage().data_ptr():
        return None
    offset = int(ids.storage_offset()) - int(tensor.storage_offset())
    if offset < 0 or offset + _span(ids) > _span(tensor):
        return None
    return _View(tensor.shape, tensor.stride(), ids.shape, ids.stride(), offset)


def _span(tensor: torch.Tensor) -> int:
    """Elements of memory from the first to the last of the tensor's."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
