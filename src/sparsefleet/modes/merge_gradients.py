"""Several mini-batches' gradients become one push.

Letters: N keys, D row width, m merged copies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sparsefleet.errors import ShapeError
from sparsefleet.modes.dense_parts import sum_of_parts
from sparsefleet.modes.mode_setting import StepGradients
from sparsefleet.store.arrays import Floats, Keys


def merge_gradients(
    copies: Sequence[StepGradients], *, summed: Collection[str] = ()
) -> StepGradients:
    """The mean of m copies, or the sum for tables in ``summed``. Overwrites the copies.

    Every row and element is divided by m, however many copies have it. Keys that several copies
    have are repeated in the result: the store sums them natively as it pushes. Dense gradients in
    parts, which are left alone, become whole, unless there is only one copy.
    """
    if len(copies) == 1:
        return copies[0]
    merged = StepGradients()
    for table in _tables_of([copy.sparse for copy in copies]):
        keys, gradients = _joined([copy.sparse[table] for copy in copies if table in copy.sparse])
        if table not in summed:
            gradients = _divided(gradients, len(copies))
        merged.sparse[table] = (keys, gradients)
    for table in _tables_of([copy.dense for copy in copies]):
        total = _total(table, [copy.dense[table] for copy in copies if table in copy.dense])
        merged.dense[table] = total if table in summed else _divided(total, len(copies))
    for table in _tables_of([copy.dense_parts for copy in copies]):
        parts = [copy.dense_parts[table] for copy in copies if table in copy.dense_parts]
        total = sum_of_parts(table, parts)
        merged.dense[table] = total if table in summed else _divided(total, len(copies))
    return merged


def _tables_of(maps: Sequence[Collection[str]]) -> list[str]:
    return list(dict.fromkeys(table for names in maps for table in names))


def _joined(parts: Sequence[tuple[Keys, Floats]]) -> tuple[Keys, Floats]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])


def _total(table: str, copies: Sequence[Floats]) -> Floats:
    for copy in copies[1:]:
        if copy.shape != copies[0].shape:
            raise ShapeError(
                f"dense table '{table}': gradients of one worker must have one shape, "
                f"got {copies[0].shape} and {copy.shape}"
            )
    total = copies[0]
    for copy in copies[1:]:
        total = np.add(total, copy, out=total if total.flags.writeable else None)
    return total


def _divided(values: Floats, count: int) -> Floats:
    divided: Floats = np.divide(
        values, np.float32(count), out=values if values.flags.writeable else None
    )
    return divided
