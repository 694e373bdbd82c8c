"""Predicts the lookups of a batch before its forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from sparsefleet.nn.lookup import ID_DTYPES, Lookup, is_keyed_jagged, values_by_key
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store.store import Unknown

Path = tuple[Any, ...]

_VALUES = object()  # in a path: the values of an object like KeyedJaggedTensor


class _Key(NamedTuple):
    """A step in a path that leads to the values of one key of a keyed jagged tensor."""

    place: int


_MAX_PLANS = 8


class _View(NamedTuple):
    """The layout of ids in the memory of a batch tensor: size, stride and offset."""

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
    """A lookup recorded in the step from which the plan was learned."""

    path: Path
    view: _View | None
    """The part of the batch tensor that is looked up; None means all of it, in any shape."""
    table: str
    dim: int
    padding_idx: int | None
    unknown: Unknown


class LookupPlan:
    """Maps the tensors of a batch, or views of them, to lookups. A plan is learned from one step.

    With a plan, all rows of a batch are pulled in one request before its forward pass. Ids that the
    forward pass computes are not in the batch and therefore not in the plan; each such lookup costs
    a separate request.

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
        """Derive a lookup plan from ``step``, whose input was ``batch``.

        A batch is a tensor, or arbitrarily nested tuples, lists and dicts of tensors and of objects
        like KeyedJaggedTensor.
        """
        tensors = list(_id_tensors(batch, ()))
        entries = []
        for lookup in step.lookups:
            place = _find(tensors, lookup.given)
            if place is not None:
                path, view = place
                entries.append(
                    _Entry(path, view, lookup.table, lookup.dim, lookup.padding_idx, lookup.unknown)
                )
        return LookupPlan(tuple(entries))

    def __len__(self) -> int:
        return len(self._entries)

    def lookups(self, batch: Any) -> list[Lookup] | None:
        """Return the lookups that ``batch`` will cause, or None if the plan does not fit it.

        A tensor that is looked up whole may have any shape. If only slices of it are looked up, its
        shape and strides must be the same as when the plan was learned; otherwise the plan does not
        fit.
        """
        found = []
        keyed: dict[Path, list[torch.Tensor]] = {}  # values by key of the objects found so far
        for entry in self._entries:
            ids = _at(batch, entry.path, keyed)
            if ids is not None and entry.view is not None:
                ids = entry.view.apply(ids)
            if ids is None:
                return None
            found.append(
                Lookup(
                    entry.table,
                    entry.dim,
                    ids,
                    padding_idx=entry.padding_idx,
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
    elif is_keyed_jagged(part):
        yield from _id_tensors(part.values(), (*path, _VALUES))
        for index, values in enumerate(values_by_key(part)):
            yield from _id_tensors(values, (*path, _Key(index)))


def _at(batch: Any, path: Path, keyed: dict[Path, list[torch.Tensor]]) -> torch.Tensor | None:
    last = path[-1] if path else None
    if isinstance(last, _Key):
        return _values_at(batch, path[:-1], last.place, keyed)
    part = _part_at(batch, path)
    return part if isinstance(part, torch.Tensor) and _holds_ids(part) else None


def _part_at(batch: Any, path: Path) -> Any:
    """Return the part of the batch at `path`, or None if there is none."""
    part = batch
    try:
        for key in path:
            if key is _VALUES:
                part = part.values() if is_keyed_jagged(part) else None
            else:
                part = part[key]
    except (LookupError, TypeError):
        return None
    return part


def _values_at(
    batch: Any, path: Path, place: int, keyed: dict[Path, list[torch.Tensor]]
) -> torch.Tensor | None:
    """Return the values of one key of the keyed jagged tensor at `path`."""
    parts = keyed.get(path)
    if parts is None:
        part = _part_at(batch, path)
        is_known = is_keyed_jagged(part) and _holds_ids(part.values())
        parts = keyed[path] = values_by_key(part) if is_known else []
    return parts[place] if place < len(parts) else None


def _holds_ids(tensor: torch.Tensor) -> bool:
    return tensor.dtype in ID_DTYPES and tensor.is_cpu and tensor.layout is torch.strided


def _find(
    tensors: list[tuple[Path, torch.Tensor]], ids: torch.Tensor
) -> tuple[Path, _View | None] | None:
    """Find the tensor in the batch that is ``ids`` itself, or that ``ids`` is a view of."""
    for path, tensor in tensors:
        if tensor is ids:
            return path, None
    if ids.numel() == 0:  # no memory to identify it by
        return None
    for path, tensor in tensors:
        if (
            tensor.data_ptr() == ids.data_ptr()
            and tensor.dtype is ids.dtype
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
    """Return the layout of ``ids`` within ``tensor``, or None if they are not part of it."""
    if tensor.dtype is not ids.dtype:  # one may view the bytes of the other
        return None
    if tensor.untyped_storage().data_ptr() != ids.untyped_storage().data_ptr():
        return None
    offset = int(ids.storage_offset()) - int(tensor.storage_offset())
    if offset < 0 or offset + _span(ids) > _span(tensor):
        return None
    return _View(tensor.shape, tensor.stride(), ids.shape, ids.stride(), offset)


def _span(tensor: torch.Tensor) -> int:
    """Return the span in memory from the tensor's first to its last element, in elements."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


class LookupPlans:
    """One plan per recently seen batch layout. Thread-safe.

    >>> plans = LookupPlans()
    >>> plans.lookups({"ads": 1}) is None
    True
    """

    def __init__(self) -> None:
        self._plans: tuple[LookupPlan, ...] = ()  # replaced as a whole, never modified
        self._most_lookups = 0  # maximum lookups in a step that a plan was learned from

    def lookups(self, batch: Any) -> list[Lookup] | None:
        """Return the lookups that the batch will cause, or None if its layout is new."""
        for plan in self._plans:
            lookups = plan.lookups(batch)
            if lookups is not None:
                return lookups
        return None

    def learn(self, rows: StepRows, batch: Any, *, planned: bool = False) -> None:
        """Derive a plan from the lookups of a step whose input was `batch`.

        planned: whether `lookups` predicted the lookups of this batch. The step is then used only
            if it made more lookups than any earlier step, since the existing plan may come from
            evaluation, which makes fewer lookups.
        """
        if planned and len(rows.lookups) <= self._most_lookups:
            return
        made = sum(lookup.ids.numel() > 0 for lookup in rows.lookups)  # plans skip empty lookups
        if planned and made <= self._most_lookups:
            return
        # Newest first; constantly changing shapes evict the oldest.
        self._plans = (LookupPlan.learn(rows, batch), *self._plans[: _MAX_PLANS - 1])
        self._most_lookups = max(self._most_lookups, made)
