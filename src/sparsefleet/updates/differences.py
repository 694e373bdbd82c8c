"""In which rows a table that is being trained differs from its export.

Letters: N rows, D row width.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparsefleet.export.quantization import EncodedRows, decode_rows, encode_rows
from sparsefleet.export.row_file import RowFile
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates.update import TableChanges

__all__ = ["differences"]


def differences(exported: RowFile, chunks: Iterable[tuple[Keys, Floats]]) -> TableChanges:
    """Rows of `chunks` (uint64[N], float32[N, D]; each key once) that the export has not, or has
    otherwise; and keys of the export that are not in them.

    Memory: 8 bytes a row, and the rows that differ.
    """
    entry = exported.entry
    seen = [np.empty(0, np.uint64)]
    none = encode_rows(entry.name, seen[0], np.empty((0, entry.dim), np.float32), entry.format)
    found: list[tuple[Keys, EncodedRows]] = [(seen[0], none)]
    for keys, values in chunks:
        rows = encode_rows(entry.name, keys, values, entry.format)
        before, known = exported.find(keys)
        differs = np.flatnonzero(~known | (decode_rows(rows) != before).any(axis=1))
        seen.append(keys)
        found.append((keys[differs], rows.take(differs)))
    keys = np.concatenate([part for part, _ in found])
    order = np.argsort(keys)
    scales = [rows.scales for _, rows in found if rows.scales is not None]
    rows = EncodedRows(
        np.concatenate([rows.values for _, rows in found]),
        np.concatenate(scales) if scales else None,
    )
    there = np.isin(exported.keys, np.concatenate(seen), assume_unique=True)
    return TableChanges(keys[order], rows.take(order), exported.keys[~there])
