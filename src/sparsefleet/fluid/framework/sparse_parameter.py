"""Parameters whose rows are in a table, such as embeddings with is_sparse=True.

In shapes, U is the number of distinct keys, D the row width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import optim
from sparsefleet.nn.pulled_rows import Pull
from sparsefleet.store import (
    Constant,
    Initializer,
    LocalStore,
    Normal,
    Rows,
    Store,
    TableSpec,
    TruncatedNormal,
    Uniform,
)
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.row_streams import import_chunks
from sparsefleet.store.rows import rows_by_key
from sparsefleet.store.store import Unknown

if TYPE_CHECKING:
    from sparsefleet.fluid.framework import Parameter

__all__ = [
    "LocalRows",
    "SparseParameter",
    "empty_table",
    "initializer_of",
    "optimizer_of",
    "pull_from",
    "whole_rows",
]

_MAX_WHOLE_BYTES = 4 << 30
_CHUNK_ROWS = 65536


class SparseParameter(ABC):
    """The value that a scope holds for a table parameter; programs see a tensor of `shape`."""

    def __init__(self, name: str, shape: tuple[int, ...], optimizer: optim.Optimizer) -> None:
        self.name = name
        self.height, self.dim = shape
        self.optimizer = optimizer
        """The optimizer that applies pushes to rows."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """Return the store of the table."""

    @property
    @abstractmethod
    def source(self) -> Pull:
        """Return the source of rows.

        Rows of all tables with the same source are pulled in one call.
        """

    @property
    @abstractmethod
    def takes_rows(self) -> bool:
        """Return whether this process loads the rows; with several workers, only the first does."""

    @property
    def is_open(self) -> bool:
        """Return whether rows can be read and written.

        For a table on servers, this is False once training has ended.
        """
        return True

    @abstractmethod
    def push(self, gradient: tuple[Keys, Floats], rate: float) -> None:
        """Apply the gradients of distinct keys with the optimizer and this learning rate."""

    def pull(self, keys: Keys, *, train: bool) -> Floats:
        """Return rows float32[U, D]. In training, the rows of new keys are stored."""
        return self.source({self.name: keys}, train=train, unknown="initial")[self.name]

    def rows(self) -> Rows:
        """Return all existing rows, sorted by key."""
        chunks = list(self.store.rows(self.name))
        if chunks:
            return rows_by_key(chunks)
        return Rows(
            np.empty(0, np.uint64),
            np.empty((0, self.dim), np.float32),
            np.empty((0, 0), np.float32),
            np.empty((0, 0), np.uint32),
        )

    # -- as a tensor --------------------------------------------------------------------------

    def set(self, array: Any, place: Any = None, zero_copy: bool = False) -> None:
        """Replace the rows with the array, float32[height, D]."""
        del place, zero_copy
        values = np.ascontiguousarray(array, np.float32)
        if values.shape != (self.height, self.dim):
            raise ValueError(
                f"parameter '{self.name}': expected an array of shape {(self.height, self.dim)}, "
                f"got {values.shape}"
            )
        import_chunks(self.store, self.name, [whole_rows(values)])

    def numpy(self) -> NDArray[np.float32]:
        """Return a copy of all rows, one per id below `height`.

        Missing rows have initial values.
        """
        num_bytes = self.height * self.dim * 4
        if num_bytes > _MAX_WHOLE_BYTES:
            raise MemoryError(
                f"parameter '{self.name}' would take {num_bytes} bytes as one array; read the "
                "existing rows from its store"
            )
        values = np.empty((self.height, self.dim), np.float32)
        for begin in range(0, self.height, _CHUNK_ROWS):
            part = slice(begin, min(begin + _CHUNK_ROWS, self.height))
            keys = np.arange(part.start, part.stop, dtype=np.uint64)
            values[part] = self.pull(keys, train=False)
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # always copies
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def shape(self) -> list[int]:
        return [self.height, self.dim]

    _get_dims = shape

    def lod(self) -> list[list[int]]:
        return []

    def _is_initialized(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"SparseParameter({self.name!r}, shape={(self.height, self.dim)})"


class LocalRows(SparseParameter):
    """A parameter whose rows are in a store in this process.

    >>> table = LocalRows("ads", (10, 2), Constant(0.5), None)
    >>> np.asarray(table).shape, float(np.asarray(table)[3, 1])
    ((10, 2), 0.5)
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        initializer: Initializer,
        optimizer: optim.Optimizer | None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, shape, optimizer or optim.SGD())
        self._store = LocalStore()
        self._rate = self.optimizer.lr
        self._store.define(
            TableSpec(
                name=name,
                dim=self.dim,
                initializer=initializer,
                optimizer=self.optimizer,
                seed=seed,
            )
        )

    @property
    def store(self) -> LocalStore:
        return self._store

    @property
    def source(self) -> Pull:
        return self._pull

    @property
    def takes_rows(self) -> bool:
        return True

    def _pull(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        del unknown  # always the initial value, since in Fluid every row exists
        mine = keys[self.name]
        return {self.name: self._store.pull(self.name, mine, train=train, unknown="initial")}

    def push(self, gradient: tuple[Keys, Floats], rate: float) -> None:
        if rate != self._rate:
            self._store.set_learning_rate(self.name, rate)
            self._rate = rate
        self._store.push_many({self.name: gradient}, unique=True)

    def move_to(self, store: LocalStore, *, track_dirty: bool = False) -> None:
        """Move the table, with its rows and their state, into a different store in this process."""
        spec = self._store.specs[self.name]
        assert isinstance(spec, TableSpec)
        store.define(replace(spec, track_dirty=track_dirty))
        store.set_learning_rate(self.name, self._rate)
        for chunk in self._store.rows(self.name):
            store.import_rows(self.name, chunk)
        self._store = store


def empty_table(parameter: Parameter) -> LocalRows:
    """Return a table without rows, in which missing rows are zeros."""
    optimizer = optimizer_of(parameter.table_optimizer)
    return LocalRows(parameter.name, parameter.shape, Constant(0.0), optimizer)


def pull_from(tables: Iterable[SparseParameter]) -> Pull:
    """Return a function that pulls rows from these tables, with one call per source."""
    sources = {table.name: table.source for table in tables}

    def pull(
        keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        del unknown  # always the initial value, since in Fluid every row exists
        calls: dict[Pull, dict[str, Keys]] = {}
        for name, part in keys.items():
            calls.setdefault(sources[name], {})[name] = part
        found: dict[str, Floats] = {}
        for source, part_of in calls.items():
            found.update(source(part_of, train=train, unknown="initial"))
        return found

    return pull


def whole_rows(values: Floats) -> Rows:
    """Return `values`, float32[N, D], as the rows of ids 0 to N - 1, without optimizer state."""
    keys = np.arange(len(values), dtype=np.uint64)
    width = (len(values), 0)
    return Rows(keys, values, np.empty(width, np.float32), np.empty(width, np.uint32))


def initializer_of(type: str, attrs: Mapping[str, Any]) -> Initializer | None:
    """Return the row initializer equivalent to an operator that fills a parameter, or None."""
    if type == "fill_constant":
        return Constant(attrs["value"])
    if type == "uniform_random":
        low, high = attrs["min"], attrs["max"]
        return Uniform(low, high) if low < high else Constant(low)
    if type == "gaussian_random":
        return Normal(attrs["mean"], attrs["std"])
    if type == "truncated_gaussian_random":
        return TruncatedNormal(attrs["mean"], attrs["std"])
    return None


def optimizer_of(settings: Mapping[str, Any] | None) -> optim.Optimizer | None:
    """Return the row optimizer for `Parameter.table_optimizer`."""
    if settings is None:
        return None
    fields = dict(settings)
    kind = getattr(optim, fields.pop("class"))
    if "betas" in fields:
        fields["betas"] = tuple(fields["betas"])
    made: optim.Optimizer = kind(**fields)
    return made
