"""The manifest, which lists a checkpoint's files, tables and tensors with their checksums."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from sparsefleet.checkpoint.folder import checksum_text
from sparsefleet.checkpoint.json_fields import (
    Fields,
    JsonObject,
    canonical,
    check,
    check_json,
    is_count,
    parse_object,
    read_count,
    read_text,
)
from sparsefleet.checkpoint.names import dense_file, encode_name, is_token, workers_file
from sparsefleet.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    ConfigError,
    CorruptFileError,
)

__all__ = [
    "BaseEntry",
    "COUNTERS",
    "DenseEntry",
    "EXPORT_KIND",
    "FORMAT",
    "FORMAT_VERSION",
    "FileEntry",
    "Manifest",
    "SERIES_NOTE",
    "StateColumn",
    "TableEntry",
]

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
        value: JsonObject = {"path": self.path, "bytes": self.num_bytes, "checksum": self.checksum}
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


FORMAT = "sparsefleet-checkpoint"
FORMAT_VERSION = 1
EXPORT_KIND = "sparsefleet inference model"
"""What `kind` says in the manifest of an exported model, which is not a checkpoint."""

SERIES_NOTE = "series"
"""The note that holds a checkpoint's `number` and `generation` in its series."""

Kind = Literal["full", "delta"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The contents of a checkpoint.

    >>> manifest = Manifest(token="00112233aabbccdd", step=7, created="2026-01-02T03:04:05Z")
    >>> Manifest.from_bytes(manifest.to_bytes(), "manifest.json") == manifest
    True
    """

    token: str
    """Token of the save: 16 hexadecimal digits that are part of every file name."""

    step: int
    """Number of training steps at the time of the save."""

    created: str
    """Time of the save, in ISO 8601, UTC."""

    written_by: str = ""
    """Program and version that wrote the checkpoint."""

    tables: tuple[TableEntry, ...] = ()

    dense: tuple[DenseEntry, ...] = ()
    """The tensors in `dense_file`."""

    dense_file: FileEntry | None = None

    workers_file: FileEntry | None = None
    """File with a JSON list with one object per worker, such as its position in the data."""

    base: BaseEntry | None = None
    """For a delta, the checkpoint that holds the rows missing from its own files."""

    same_as: tuple[str, ...] = ()
    """Tokens of earlier saves at this path with the same contents. Deltas based on them stay
    valid."""

    notes: Mapping[str, Any] = field(default_factory=dict)
    """Data that the program needs to load the checkpoint again, as plain JSON."""

    @property
    def number(self) -> int | None:
        """The position of this save in its series, counted from the first save.

        None outside a series, and in a series written by an older version.
        """
        return self._series_count("number")

    @property
    def generation(self) -> int | None:
        """Number of training runs started from scratch in the series so far; None if unknown."""
        return self._series_count("generation")

    def _series_count(self, name: str) -> int | None:
        series = self.notes.get(SERIES_NOTE)
        found = series.get(name) if isinstance(series, Mapping) else None
        return found if isinstance(found, int) and is_count(found) else None

    @property
    def age_order(self) -> tuple[int, datetime, int]:
        """Return a sort key that increases with each save, even if the clock or the step goes back.

        Only saves written by older versions, which have no number, are ordered by time.
        """
        return self.number or 0, _parse_time(self.created), self.step

    def __post_init__(self) -> None:
        check(is_token(self.token), "token", "16 hexadecimal digits", self.token)
        check(is_count(self.step), "step", "a whole number >= 0", self.step)
        check(
            _is_time(self.created),
            "created",
            "a UTC time such as 2026-01-02T03:04:05Z",
            self.created,
        )
        check_json(self.notes, "notes")
        names = [table.name for table in self.tables]
        check(len(set(names)) == len(names), "tables", "different names", names)
        tensors = [tensor.name for tensor in self.dense]
        check(len(set(tensors)) == len(tensors), "dense", "different names", tensors)
        check(not tensors or self.dense_file is not None, "dense_file", "a file", None)
        if self.base is not None:
            check(is_token(self.base.token), "base.token", "16 hexadecimal digits", self.base.token)
            check(bool(self.base.path), "base.path", "a path", self.base.path)
        for table in self.tables:
            self._check_table(table)
        paths = [entry.path for entry in self.files()]
        check(len(set(paths)) == len(paths), "files", "each file once", sorted(paths))
        for thing, entry, path in (
            ("dense_file", self.dense_file, dense_file(self.token)),
            ("workers_file", self.workers_file, workers_file(self.token)),
        ):
            check(entry is None or entry.path == path, thing, path, entry)

    def _check_table(self, table: TableEntry) -> None:
        thing = f"table {table.name!r}"
        missing = table.missing_shards()
        check(not missing, f"{thing}: files", "one or more for each shard", f"none for {missing}")
        check(
            not table.removed or self.base is not None,
            f"{thing}: removed",
            "none in a full checkpoint",
            table.num_removed,
        )
        folder = f"{encode_name(table.name)}-{self.token}/"
        for top, entries in (("tables/", table.files), ("removed/", table.removed)):
            for entry in entries:
                right = entry.path.startswith(
                    f"{top}{folder}{entry.shard:05d}-of-{table.num_shards:05d}"
                )
                check(right, f"{thing}: file", f"a path below {top}{folder}", entry.path)

    @property
    def kind(self) -> Kind:
        return "full" if self.base is None else "delta"

    def files(self) -> Iterator[FileEntry]:
        """Yield every file except the manifest."""
        for table in self.tables:
            yield from table.files
            yield from table.removed
        for entry in (self.dense_file, self.workers_file):
            if entry is not None:
                yield entry

    @property
    def num_bytes(self) -> int:
        """Return the size of all files except the manifest."""
        return sum(entry.num_bytes for entry in self.files())

    def table(self, name: str, where: str = "checkpoint") -> TableEntry:
        """Return the table with this name. Raises CheckpointMismatchError if there is none."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(repr(table.name) for table in self.tables) or "none"
        raise CheckpointMismatchError(f"{where}: expected table {name!r}, found {known}")

    def to_bytes(self) -> bytes:
        """Return the contents of manifest.json."""
        body = self._to_json()
        body["checksum"] = checksum_text(zlib.crc32(canonical(body)))
        return (json.dumps(body, indent=1, ensure_ascii=True) + "\n").encode("ascii")

    def _to_json(self) -> JsonObject:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "token": self.token,
            "step": self.step,
            "created": self.created,
            "written_by": self.written_by,
            "base": self.base.to_json() if self.base else None,
            "same_as": list(self.same_as),
            "tables": [table.to_json() for table in self.tables],
            "dense": [tensor.to_json() for tensor in self.dense],
            "dense_file": self.dense_file.to_json() if self.dense_file else None,
            "workers_file": self.workers_file.to_json() if self.workers_file else None,
            "notes": dict(self.notes),
        }

    @classmethod
    def from_bytes(cls, data: bytes, location: str) -> Manifest:
        """Parse the contents of manifest.json; errors refer to the file as `location`.

        Raises CorruptFileError, or CheckpointVersionError for a newer format.
        """
        try:
            value = parse_object(data, "manifest")
            _check_format(value, location)
            found = value.pop("checksum", None)
            expected = checksum_text(zlib.crc32(canonical(value)))
            check(found == expected, "checksum of the manifest", expected, found)
            return cls._from_json(value)
        except ConfigError as error:
            raise CorruptFileError(f"{location}: {error}") from error

    @classmethod
    def _from_json(cls, value: JsonObject) -> Manifest:
        fields = Fields(value, "manifest")
        for checked_before in ("format", "format_version"):
            fields.optional(checked_before, lambda found, _: found)
        kind = fields.text("kind")
        manifest = cls(
            token=fields.text("token"),
            step=fields.count("step"),
            created=fields.text("created"),
            written_by=fields.text("written_by"),
            tables=fields.items("tables", TableEntry.from_json),
            dense=fields.items("dense", DenseEntry.from_json),
            dense_file=fields.optional("dense_file", FileEntry.from_json),
            workers_file=fields.optional("workers_file", FileEntry.from_json),
            base=fields.optional("base", BaseEntry.from_json),
            same_as=fields.items("same_as", read_text),
            notes=fields.mapping("notes"),
        )
        wanted = "a base in a delta, and none in a full one"
        check(kind == manifest.kind, "manifest.kind", wanted, kind)
        fields.end()
        return manifest


def _is_time(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(_parse_time(text))
    except ValueError:
        return False


def _parse_time(text: str) -> datetime:
    """Parse a UTC time, with or without fractional seconds. Raises ValueError."""
    return datetime.strptime(text, f"%Y-%m-%dT%H:%M:%S{'.%f' if '.' in text else ''}Z")


def _check_format(value: JsonObject, location: str) -> None:
    """Check format and version first, because a newer format may have different fields."""
    if "format" not in value and value.get("kind") == EXPORT_KIND:
        raise ConfigError(
            "expected a checkpoint, found an exported model, which has no optimizer state; pass a "
            "directory that Trainer.save wrote, or a checkpoint saved during training"
        )
    check(value.get("format") == FORMAT, "manifest.format", repr(FORMAT), value.get("format"))
    version = value.get("format_version")
    check(is_count(version), "manifest.format_version", "a whole number >= 0", version)
    assert isinstance(version, int)
    if version > FORMAT_VERSION:
        raise CheckpointVersionError(
            f"{location}: expected format version {FORMAT_VERSION}, found {version}, written by a "
            "newer sparsefleet; upgrade sparsefleet to read it"
        )
    check(version == FORMAT_VERSION, "manifest.format_version", str(FORMAT_VERSION), version)
