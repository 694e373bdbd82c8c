"""Row gradients of all ranks, on every rank; for ranks that hold the tables themselves.

Letters: N keys, D row width, R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparsefleet.nn.step_rows import merge_gradients
from sparsefleet.store import TableSpec
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.collective import World

RowGradients = Mapping[str, tuple[Keys, Floats]]
"""Table to keys uint64[N], each once, and gradients float32[N, D]."""


def mean_over_ranks(
    world: World, tables: Mapping[str, TableSpec], own: RowGradients | None
) -> dict[str, tuple[Keys, Floats]]:
    """Each key of any rank once, with the mean of its gradients over the ranks that give some.

    All ranks call it; one without data gives None, and does not count. Sums are made in the
    order of ranks: the result has the same bits everywhere.
    """
    given = [_unpack(part, tables) for part in world.all_gather_bytes(_pack(own, tables))]
    counted = [part for part in given if part is not None]
    summed = sum_by_table(counted)
    for _, gradients in summed.values():
        gradients /= np.float32(len(counted))
    return summed


def sum_by_table(parts: Sequence[RowGradients]) -> dict[str, tuple[Keys, Floats]]:
    """Every key of each table once, with the sum of its gradients; in arrays of its own.

    >>> one = (np.array([7], np.uint64), np.array([[1.0]], np.float32))
    >>> sum_by_table([{"ads": one}, {"ads": one}])
    {'ads': (array([7], dtype=uint64), array([[2.]], dtype=float32))}
    """
    summed = {}
    for table in dict.fromkeys(table for part in parts for table in part):
        keys, gradients = merge_gradients([part[table] for part in parts if table in part])
        summed[table] = (keys, gradients if gradients.flags.writeable else gradients.copy())
    return summed


def _pack(own: RowGradients | None, tables: Mapping[str, TableSpec]) -> bytes:
    """Format: for each table, by name, uint64 N, uint64[N] keys, float32[N, D] gradients."""
    if own is None:
        return b""
    parts: list[bytes] = []
    for table in sorted(tables):
        if table not in own:
            parts.append(bytes(8))
            continue
        keys, gradients = own[table]
        parts += [np.uint64(len(keys)).tobytes(), keys.tobytes(), gradients.tobytes()]
    return b"".join(parts) or b"\0"


def _unpack(
    data: bytes, tables: Mapping[str, TableSpec]
) -> dict[str, tuple[Keys, Floats]] | None:
    if not data:
        return None
    found = {}
    begin = 0
    for table in sorted(tables):
        count = int(np.frombuffer(data, np.uint64, 1, begin)[0])
        dim = tables[table].dim
        if count:
            keys: Keys = np.frombuffer(data, np.uint64, count, begin + 8)
            at = begin + 8 + 8 * count
            gradients: Floats = np.frombuffer(data, np.float32, count * dim, at)
            found[table] = (keys, gradients.reshape(count, dim))
        begin += 8 + count * (8 + 4 * dim)
    return found
