"""Manifest entries for files, tables and tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparsefleet.checkpoint.json_fields import (
    Fields,
    JsonObject,
    check,
    check_json,
    is_count,
    read_count,
    read_text,
)
from sparsefleet.errors import CheckpointMismatchError

__all__ = ["BaseEntry", "COUNTERS", "DenseEntry", "FileEntry", "StateColumn", "TableEntry"]

COUNTERS = ("count", "step", "seconds")
"""The counters that a table may keep per row, in their order in the `counters` column."""

MAX_SHARDS = 99_999
_CHECKSUM = re.compile(r"crc32:[0-9a-f]{8}")


def _is_inside(path: object) -> bool:
    """Return whether the path stays inside the checkpoint."""
    return (
        isinstance(path, str)
        and bool(path)
        and all(part not in ("", ".", "..") for part in path.split("/"))
        and "\\" not in path
        and path.isprintable()
    )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a checkpoint."""

    path: str
    """Path relative to the checkpoint, with slashes."""

    num_bytes: int

    checksum: str
    """`crc32:` followed by the eight-digit hexadecimal checksum of the whole file."""

    num_rows: int | None = None
    """Number of rows or removed keys, or None for other kinds of files."""

    shard: int | None = None
    """The shard that the file's rows belong to, or None for other kinds of files."""

    def __post_init__(self) -> None:
        check(_is_inside(self.path), "path of a file", "a relative path", self.path)
        thing = f"file {self.path}"
        check(is_count(self.num_bytes), f"{thing}: bytes", "a whole number >= 0", self.num_bytes)
        right = isinstance(self.checksum, str) and _CHECKSUM.fullmatch(self.checksum) is not None
        check(right, f"{thing}: checksum", "crc32:xxxxxxxx", self.checksum)
        check((self.num_rows is None) == (self.shard is None), thing, "rows and shard", self)

    def to_json(self) -> JsonObject:
        value: JsonObject = {
            "path": self.path,
            "bytes": self.num_bytes,
            "checksum": self.checksum,
        }
        if self.num_rows is not None:
            value |= {"rows": self.num_rows, "shard": self.shard}
        return value

    @classmethod
    def from_json(cls, value: object, thing: str = "file") -> FileEntry:
        fields = Fields(value, thing)
        path, size = fields.text("path"), fields.count("bytes")
        checksum = fields.text("checksum")
        rows = shard = None
        if isinstance(value, Mapping) and "rows" in value:
            rows, shard = fields.count("rows"), fields.count("shard")
        fields.end()
        return cls(path, size, checksum, rows, shard)


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One array of optimizer state, which takes up `width` floats in the `state` column."""

    name: str
    width: int

    def __post_init__(self) -> None:
        check(isinstance(self.name, str) and bool(self.name), "state name", "text", self.name)
        right = is_count(self.width) and self.width > 0
        check(right, f"state {self.name!r}: width", "a whole number > 0", self.width)

    @classmethod
    def from_json(cls, value: object, thing: str = "state") -> StateColumn:
        fields = Fields(value, thing)
        column = cls(fields.text("name"), fields.count("width"))
        fields.end()
        return column


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """A sparse table in a checkpoint.

    >>> TableEntry(name="ads", dim=8, optimizer={"kind": "sgd"}).state_width
    0
    """

    name: str

    dim: int
    """Width of the `values` column."""

    optimizer: Mapping[str, Any]
    """Optimizer settings. The kind `none` marks imported values, which any optimizer can use."""

    state: tuple[StateColumn, ...] = ()
    """The arrays in the `state` column, in order."""

    counters: tuple[str, ...] = ()
    """The counters in the `counters` column: a subset of count, step, seconds, in this order."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The other settings of the table, such as its initializer, seed and admission rule."""

    num_shards: int = 1
    """Number of servers that wrote the table; `shard_of(keys, num_shards)` maps keys to shards."""

    files: tuple[FileEntry, ...] = ()
    """Files of rows, at least one per shard."""

    removed: tuple[FileEntry, ...] = ()
    """Files of keys that a delta removes, at most one per shard."""

    def __post_init__(self) -> None:
        check(isinstance(self.name, str) and bool(self.name), "name of a table", "text", self.name)
        thing = f"table {self.name!r}"
        check(is_count(self.dim) and self.dim > 0, f"{thing}: dim", "a whole number > 0", self.dim)
        kind = self.optimizer.get("kind") if isinstance(self.optimizer, Mapping) else None
        check(isinstance(kind, str), f"{thing}: optimizer.kind", "text", kind)
        check_json(self.optimizer, f"{thing}: optimizer")
        check_json(self.settings, f"{thing}: settings")
        ordered = tuple(name for name in COUNTERS if name in self.counters)
        check(
            self.counters == ordered,
            f"{thing}: counters",
            "some of count, step, seconds in order",
            self.counters,
        )
        shards = self.num_shards
        right = is_count(shards) and 1 <= shards <= MAX_SHARDS
        check(right, f"{thing}: num_shards", f"1..{MAX_SHARDS}", shards)
        names = [column.name for column in self.state]
        check(len(set(names)) == len(names), f"{thing}: state", "different names", names)
        for entry in (*self.files, *self.removed):
            right = entry.shard is not None and entry.shard < shards
            check(right, f"{thing}: shard of {entry.path}", f"below {shards}", entry.shard)

    @property
    def state_width(self) -> int:
        """Return the number of floats of optimizer state per row."""
        return sum(column.width for column in self.state)

    @property
    def has_values_only(self) -> bool:
        """Return whether only values were saved, so that rows get initial state and counters."""
        return bool(self.optimizer["kind"] == "none")

    @property
    def num_rows(self) -> int:
        """Return the number of rows in the table's own files, excluding the base of a delta."""
        return sum(entry.num_rows or 0 for entry in self.files)

    @property
    def num_removed(self) -> int:
        return sum(entry.num_rows or 0 for entry in self.removed)

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in (*self.files, *self.removed))

    def with_files(
        self, files: Iterable[FileEntry], removed: Iterable[FileEntry] = (), *, num_shards: int = 1
    ) -> TableEntry:
        """Return a copy of this entry with these files."""
        return replace(self, files=tuple(files), removed=tuple(removed), num_shards=num_shards)

    def missing_shards(self) -> list[int]:
        """Return the shards that have no file of rows."""
        return sorted(set(range(self.num_shards)) - {entry.shard for entry in self.files})

    def require_same(self, wanted: TableEntry, where: str, *, in_a_delta: bool = False) -> None:
        """Raise CheckpointMismatchError unless rows of this table fit the table `wanted`.

        Width, optimizer, state and counters must match; settings of the optimizer, such as the
        learning rate, may differ. For imported values only the width must match, except when rows
        are merged with a delta's rows.
        """
        parts: list[tuple[str, object, object]] = [("width", self.dim, wanted.dim)]
        if in_a_delta or not self.has_values_only:
            parts += [
                ("optimizer", self.optimizer["kind"], wanted.optimizer["kind"]),
                ("state", _shown(self.state), _shown(wanted.state)),
                ("counters", list(self.counters), list(wanted.counters)),
            ]
        for what, found, expected in parts:
            if found != expected:
                raise CheckpointMismatchError(
                    f"{where}: table {self.name!r}: {what}: expected {expected!r}, found {found!r}"
                )

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": dict(self.optimizer),
            "state": [{"name": column.name, "width": column.width} for column in self.state],
            "counters": list(self.counters),
            "settings": dict(self.settings),
            "num_shards": self.num_shards,
            "rows": self.num_rows,
            "removed_keys": self.num_removed,
            "files": [entry.to_json() for entry in self.files],
            "removed": [entry.to_json() for entry in self.removed],
        }

    @classmethod
    def from_json(cls, value: object, thing: str = "table") -> TableEntry:
        fields = Fields(value, thing)
        table = cls(
            name=fields.text("name"),
            dim=fields.count("dim"),
            optimizer=fields.mapping("optimizer"),
            state=fields.items("state", StateColumn.from_json),
            counters=fields.items("counters", read_text),
            settings=fields.mapping("settings"),
            num_shards=fields.count("num_shards"),
            files=fields.items("files", FileEntry.from_json),
            removed=fields.items("removed", FileEntry.from_json),
        )
        for name, sum_of in (("rows", table.num_rows), ("removed_keys", table.num_removed)):
            found = fields.count(name)
            check(found == sum_of, f"{thing}.{name}", f"{sum_of}, the sum over its files", found)
        fields.end()
        return table


def _shown(state: tuple[StateColumn, ...]) -> str:
    return ", ".join(f"{column.name}[{column.width}]" for column in state) or "none"


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """A tensor in the file of dense parameters."""

    name: str
    dtype: str
    """NumPy's name for the type, for example float32."""
    shape: tuple[int, ...]

    @classmethod
    def from_json(cls, value: object, thing: str = "tensor") -> DenseEntry:
        fields = Fields(value, thing)
        name, dtype = fields.text("name"), fields.text("dtype")
        entry = cls(name, dtype, fields.items("shape", read_count))
        fields.end()
        return entry

    def to_json(self) -> JsonObject:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """The checkpoint that a delta builds on."""

    path: str
    """Path relative to the delta if both are on the same file system, otherwise absolute."""
    token: str
    """Token of the base; a different save at that path is rejected."""

    @classmethod
    def from_json(cls, value: object, thing: str = "base") -> BaseEntry:
        fields = Fields(value, thing)
        entry = cls(fields.text("path"), fields.text("token"))
        fields.end()
        return entry

    def to_json(self) -> JsonObject:
        return {"path": self.path, "token": self.token}
