"""Updates to a served model: changed rows, removed keys, dense parameters; and overlays of many.

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
from sparsefleet.serving.export.quantization import EncodedRows, decode_rows
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["Kind", "Overlay", "TableChanges", "TableOverlay", "Update", "UpdateName"]

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
        """Parse an update; raise CorruptFileError unless `raw` is intact and matches `name`."""
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


# The changes from many updates, layered over an export's rows.
#
# In shapes, U is the number of requested keys, N the number of rows, D the row width.
#
# Organized like a log-structured merge tree: sorted runs, newest last, each at least twice as
# large as the next. An update adds a run and merges runs of similar size, so that applying n rows
# costs about n log N and a lookup searches log N runs. Everything is immutable: the holder of an
# overlay keeps seeing one snapshot while newer ones are made.

_GROWTH = 2


class _Run(NamedTuple):
    """Sorted changes with distinct keys."""

    keys: Keys
    present: NDArray[np.bool_]
    """False if the row was removed; its values are then meaningless."""
    rows: EncodedRows


class TableOverlay:
    """Changes to one table since the export.

    >>> keys, gone = np.array([3, 5], np.uint64), np.array([7], np.uint64)
    >>> rows = EncodedRows(np.array([[1.0], [2.0]], np.float32), None)
    >>> overlay = TableOverlay().after(TableChanges(keys, rows, gone))
    >>> out, known = np.zeros((3, 1), np.float32), np.array([False, False, True])
    >>> overlay.find(np.array([5, 6, 7], np.uint64), out, known)
    array([ True, False,  True])
    >>> out.ravel(), known
    (array([2., 0., 0.], dtype=float32), array([ True, False, False]))
    """

    def __init__(self, runs: tuple[_Run, ...] = ()) -> None:
        self._runs = runs

    def __len__(self) -> int:
        """Return the number of rows and removed keys in all runs, including replaced ones."""
        return sum(len(run.keys) for run in self._runs)

    @property
    def memory_bytes(self) -> int:
        return sum(
            part.nbytes
            for run in self._runs
            for part in (run.keys, run.present, run.rows.values, run.rows.scales)
            if part is not None
        )

    def after(self, changes: TableChanges) -> TableOverlay:
        """Return this overlay with newer changes on top."""
        run = _run_of(changes)
        if not len(run.keys):
            return self
        runs = [*self._runs, run]
        while len(runs) > 1 and len(runs[-2].keys) < _GROWTH * len(runs[-1].keys):
            newer = runs.pop()
            runs[-1] = _merged(runs[-1], newer)
        return TableOverlay(tuple(runs))

    def find(self, keys: Keys, rows: Floats, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Set `rows`, float32[U, D], and `known`, bool[U], for changed keys; return their mask."""
        changed = np.zeros(len(keys), np.bool_)
        for run in reversed(self._runs):
            asked = np.flatnonzero(~changed)
            if not len(asked):
                break
            places = np.minimum(np.searchsorted(run.keys, keys[asked]), len(run.keys) - 1)
            hits = run.keys[places] == keys[asked]
            asked, places = asked[hits], places[hits]
            present = run.present[places]
            rows[asked] = np.where(present[:, None], decode_rows(run.rows.take(places)), 0.0)
            known[asked] = present
            changed[asked] = True
        return changed

    def changes(self) -> TableChanges:
        """Return all changes as a single update."""
        if not self._runs:
            raise ValueError("an overlay without changes has no width")
        whole = self._runs[0]
        for run in self._runs[1:]:
            whole = _merged(whole, run)
        rows = whole.rows.take(np.flatnonzero(whole.present))
        return TableChanges(whole.keys[whole.present], rows, whole.keys[~whole.present])


class Overlay:
    """Changes to all tables since the export, with the dense parameters of the same snapshot."""

    def __init__(self, tables: Mapping[str, TableOverlay] | None = None) -> None:
        self.tables: Mapping[str, TableOverlay] = tables or {}

    def after(self, tables: Mapping[str, TableChanges]) -> Overlay:
        """Return this overlay with newer changes on top."""
        merged = dict(self.tables)
        for name, changes in tables.items():
            merged[name] = merged.get(name, TableOverlay()).after(changes)
        return Overlay(merged)

    def table(self, name: str) -> TableOverlay:
        return self.tables.get(name, TableOverlay())

    def changes(self) -> dict[str, TableChanges]:
        """Return all changes as a single update, omitting unchanged tables."""
        return {name: table.changes() for name, table in self.tables.items() if len(table)}

    @property
    def memory_bytes(self) -> int:
        return sum(table.memory_bytes for table in self.tables.values())


def _run_of(changes: TableChanges) -> _Run:
    keys = np.concatenate([changes.keys, changes.removed])
    present = np.arange(len(keys)) < len(changes.keys)
    order = np.argsort(keys, kind="stable")
    nothing = np.zeros((len(changes.removed), changes.rows.values.shape[1]))
    values = np.concatenate([changes.rows.values, nothing.astype(changes.rows.values.dtype)])
    scales = changes.rows.scales
    if scales is not None:
        scales = np.concatenate([scales, nothing[:, 0].astype(np.float32)])
    return _Run(keys[order], present[order], EncodedRows(values, scales).take(order))


def _merged(older: _Run, newer: _Run) -> _Run:
    """Merge two runs. For a key in both, the newer run wins."""
    stays = ~np.isin(older.keys, newer.keys, assume_unique=True)
    keys = np.concatenate([older.keys[stays], newer.keys])
    order = np.argsort(keys, kind="stable")

    def both(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate([one[stays], other])[order]
        return joined

    scales: Floats | None = None
    if older.rows.scales is not None and newer.rows.scales is not None:
        scales = both(older.rows.scales, newer.rows.scales)
    rows = EncodedRows(both(older.rows.values, newer.rows.values), scales)
    return _Run(keys[order], both(older.present, newer.present), rows)
