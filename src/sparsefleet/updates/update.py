"""An update of a served model: rows that changed, keys that went, and the dense parameters.

Letters: N rows, D row width, R removed keys.

Format: a safetensors file; docs/row_stores.md has it array by array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.quantization import EncodedRows
from sparsefleet.store.arrays import Keys
from sparsefleet.updates.update_name import Kind, UpdateName

__all__ = ["TableChanges", "Update"]

_KIND = "sparsefleet update"
_VERSION = 1
_KEYS, _VALUES, _SCALES, _REMOVED, _DENSE = "keys/", "values/", "scales/", "removed/", "dense/"


class TableChanges(NamedTuple):
    """What changed in one table. Keys rise; none is in both."""

    keys: Keys
    """uint64[N]"""
    rows: EncodedRows
    """Of the keys: values [N, D] in the format of the export, and scales [N] in int8."""
    removed: Keys
    """uint64[R]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Leads from one moment of a model to the next (a delta), or from its export to it (whole)."""

    base: str
    """`Manifest.digest` of the export that the rows belong to."""
    sequence: int
    moment: str
    previous: str | None
    """The moment that a delta leads on from; None: whole, it leads on from the export itself."""
    made: float
    """When the trained model was so, seconds since 1970."""
    tables: Mapping[str, TableChanges] = field(default_factory=dict)
    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """All dense parameters and buffers of the export by name: they are of the same moment."""

    @property
    def num_rows(self) -> int:
        return sum(len(changes.keys) + len(changes.removed) for changes in self.tables.values())

    def to_bytes(self) -> tuple[UpdateName, bytes]:
        """The content, and the name that goes with it."""
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
            "moment": self.moment,
            "previous": self.previous,
            "made": self.made,
        }
        raw = save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            {"update": json.dumps(head)},
        )
        kind: Kind = "whole" if self.previous is None else "delta"
        return UpdateName(kind, self.sequence, self.moment, _checksum(raw)), raw

    @classmethod
    def from_bytes(cls, name: UpdateName, raw: bytes, where: str) -> Update:
        """Raises CorruptFileError naming `where` unless `raw` is what `name` says, and whole."""
        found = _checksum(raw)
        if found != name.checksum:
            raise CorruptFileError(
                f"{where}: update {name.sequence} has changed since it was written: its SHA-256 "
                f"begins with {found}, wanted {name.checksum}"
            )
        try:
            arrays = load(raw)
            size = int.from_bytes(raw[:8], "little")
            head = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["update"])
            if (head["kind"], head["version"]) != (_KIND, _VERSION):
                raise CorruptFileError(
                    f"{where}: '{name}' is {head['kind']!r} of version {head['version']!r}; this "
                    f"sparsefleet reads {_KIND!r} of version {_VERSION}"
                )
            tables = {
                key[len(_KEYS) :]: _changes(arrays, key[len(_KEYS) :])
                for key in arrays
                if key.startswith(_KEYS)
            }
            return cls(
                base=str(head["base"]),
                sequence=int(head["sequence"]),
                moment=str(head["moment"]),
                previous=head["previous"],
                made=float(head["made"]),
                tables=tables,
                dense={k[len(_DENSE) :]: v for k, v in arrays.items() if k.startswith(_DENSE)},
            )
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CorruptFileError(f"{where}: '{name}' is no update: {error}") from error


def _changes(arrays: Mapping[str, NDArray[Any]], table: str) -> TableChanges:
    rows = EncodedRows(arrays[_VALUES + table], arrays.get(_SCALES + table))
    changes = TableChanges(arrays[_KEYS + table], rows, arrays[_REMOVED + table])
    for keys in (changes.keys, changes.removed):
        if keys.dtype != np.uint64 or keys.ndim != 1 or bool((keys[1:] <= keys[:-1]).any()):
            raise ValueError(f"keys of table '{table}' are not rising uint64")
    scales = rows.scales
    if rows.values.ndim != 2 or len(rows.values) != len(changes.keys):
        raise ValueError(f"table '{table}' has {len(changes.keys)} keys for other rows")
    if (rows.values.dtype == np.int8) != (scales is not None) or (
        scales is not None and scales.shape != changes.keys.shape
    ):
        raise ValueError(f"table '{table}' has rows of int8 without scales, or scales without")
    return changes


def _checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
