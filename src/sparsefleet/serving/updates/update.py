"""An update to a served model, with changed rows, removed keys and the dense parameters.

In shapes, N is the number of rows, D the row width, R the number of removed keys.

Format: a safetensors file; docs/row_stores.md lists the arrays.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparsefleet.errors import CorruptFileError
from sparsefleet.serving.export.quantization import EncodedRows
from sparsefleet.store.arrays import Keys

__all__ = ["Kind", "TableChanges", "Update", "UpdateName"]

Kind = Literal["delta", "whole"]

_SUFFIX = ".safetensors"
_NAME = re.compile(r"(delta|whole)-(\d{12})-([0-9a-f]{16})-([0-9a-f]{16})" + re.escape(_SUFFIX))


class UpdateName(NamedTuple):
    """The name of one update; its `str` is the file name.

    >>> name = UpdateName("delta", 7, "00112233aabbccdd", "8899aabbccddeeff")
    >>> str(name)
    'delta-000000000007-00112233aabbccdd-8899aabbccddeeff.safetensors'
    >>> UpdateName.parse(str(name)) == name
    True
    >>> UpdateName.parse("notes.txt") is None
    True
    """

    kind: Kind
    sequence: int
    """The sequence number, which increases by one with each published snapshot."""
    snapshot_id: str
    """16 hexadecimal digits that identify the snapshot after this update. A delta and a full
    update with the same snapshot lead to the same rows. Equal sequence numbers with different
    snapshots belong to logs that were restarted.
    """
    checksum: str
    """The first 16 digits of the SHA-256 of its bytes."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.sequence:012d}-{self.snapshot_id}-{self.checksum}{_SUFFIX}"

    @classmethod
    def parse(cls, text: str) -> UpdateName | None:
        """Parse the file name of an update; return None if it is not one."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        kind: Kind = "delta" if found[1] == "delta" else "whole"
        return cls(kind, int(found[2]), found[3], found[4])


_KIND = "sparsefleet update"
_VERSION = 1
_KEYS, _VALUES, _SCALES, _REMOVED, _DENSE = "keys/", "values/", "scales/", "removed/", "dense/"


class TableChanges(NamedTuple):
    """Changes to one table. Keys are ascending; no key is both changed and removed."""

    keys: Keys
    """uint64[N]"""
    rows: EncodedRows
    """The keys' rows: values [N, D] in the export's format, and scales [N] for int8."""
    removed: Keys
    """uint64[R]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The changes from one snapshot to the next (delta), or from the export to a snapshot (whole,
    or full).
    """

    base: str
    """`ExportManifest.digest` of the export that the rows belong to."""
    sequence: int
    snapshot_id: str
    previous: str | None
    """The snapshot that a delta applies to; None for a full update, which applies to the
    export.
    """
    made: float
    """When the snapshot was taken, in seconds since 1970."""
    tables: Mapping[str, TableChanges] = field(default_factory=dict)
    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """All of the export's dense parameters and buffers by name, from the same snapshot."""

    @property
    def num_rows(self) -> int:
        return sum(len(changes.keys) + len(changes.removed) for changes in self.tables.values())

    def to_bytes(self) -> tuple[UpdateName, bytes]:
        """Return the update's name and its content."""
        arrays: dict[str, NDArray[Any]] = {}
        for table, (keys, rows, removed) in self.tables.items():
            arrays[_KEYS + table], arrays[_VALUES + table] = keys, rows.values
            arrays[_REMOVED + table] = removed
            if rows.scales is not None:
                arrays[_SCALES + table] = rows.scales
        arrays |= {_DENSE + name: value for name, value in self.dense.items()}
        head = {
            "kind": _KIND,
            "version": _VERSION,
            "base": self.base,
            "sequence": self.sequence,
            "moment": self.snapshot_id,
            "previous": self.previous,
            "made": self.made,
        }
        raw = save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            {"update": json.dumps(head)},
        )
        kind: Kind = "whole" if self.previous is None else "delta"
        return UpdateName(kind, self.sequence, self.snapshot_id, _checksum(raw)), raw

    @classmethod
    def from_bytes(cls, name: UpdateName, raw: bytes, where: str) -> Update:
        """Parse an update; raise CorruptFileError naming `where` unless `raw` is intact and matches
        `name`.
        """
        found = _checksum(raw)
        if found != name.checksum:
            raise CorruptFileError(
                f"{where}: update {name.sequence} has changed since it was written: its SHA-256 "
                f"begins with {found}, expected {name.checksum}"
            )
        try:
            arrays = load(raw)
            size = int.from_bytes(raw[:8], "little")
            head = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["update"])
            if (head["kind"], head["version"]) != (_KIND, _VERSION):
                raise CorruptFileError(
                    f"{where}: '{name}' is a file of kind {head['kind']!r}, version "
                    f"{head['version']!r}; this version of sparsefleet reads {_KIND!r}, version "
                    f"{_VERSION}"
                )
            tables = {
                key[len(_KEYS) :]: _changes(arrays, key[len(_KEYS) :])
                for key in arrays
                if key.startswith(_KEYS)
            }
            return cls(
                base=str(head["base"]),
                sequence=int(head["sequence"]),
                snapshot_id=str(head["moment"]),
                previous=head["previous"],
                made=float(head["made"]),
                tables=tables,
                dense={k[len(_DENSE) :]: v for k, v in arrays.items() if k.startswith(_DENSE)},
            )
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise CorruptFileError(f"{where}: '{name}' is not an update: {error}") from error


def _changes(arrays: Mapping[str, NDArray[Any]], table: str) -> TableChanges:
    rows = EncodedRows(arrays[_VALUES + table], arrays.get(_SCALES + table))
    changes = TableChanges(arrays[_KEYS + table], rows, arrays[_REMOVED + table])
    for keys in (changes.keys, changes.removed):
        if keys.dtype != np.uint64 or keys.ndim != 1 or bool((keys[1:] <= keys[:-1]).any()):
            raise ValueError(f"keys of table '{table}' are not ascending uint64")
    scales = rows.scales
    if rows.values.ndim != 2 or len(rows.values) != len(changes.keys):
        raise ValueError(
            f"table '{table}' has {len(changes.keys)} keys, but a different number of rows"
        )
    if (rows.values.dtype == np.int8) != (scales is not None) or (
        scales is not None and scales.shape != changes.keys.shape
    ):
        raise ValueError(f"table '{table}' must have scales if and only if its rows are int8")
    return changes


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
