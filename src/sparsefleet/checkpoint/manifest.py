"""The manifest, which lists the contents of a checkpoint with their checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sparsefleet.checkpoint.entries import BaseEntry, DenseEntry, FileEntry, TableEntry
from sparsefleet.checkpoint.folder import checksum_text
from sparsefleet.checkpoint.json_fields import (
    Fields,
    JsonObject,
    canonical,
    check,
    check_json,
    is_count,
    parse_object,
    read_text,
)
from sparsefleet.checkpoint.names import dense_file, encode_name, is_token, workers_file
from sparsefleet.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["FORMAT", "FORMAT_VERSION", "Manifest", "SERIES_NOTE"]

FORMAT = "sparsefleet-checkpoint"
FORMAT_VERSION = 1
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
    if "format" not in value and value.get("kind") == "sparsefleet inference model":
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
