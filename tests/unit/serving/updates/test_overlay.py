"""The changes of many updates add up to the same as applying them to a dict one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.serving.export.quantization import EncodedRows, RowFormat, decode_rows, encode_rows
from sparsefleet.serving.updates.update import Overlay, TableChanges, TableOverlay

DIM = 2

Step = tuple[dict[int, float], set[int]]
KEYS = st.integers(0, 30) | st.integers(2**64 - 5, 2**64 - 1)
STEPS = st.lists(
    st.tuples(st.dictionaries(KEYS, st.floats(-5, 5, width=16), max_size=12), st.sets(KEYS)),
    max_size=12,
)


def changes(step: Step, row_format: RowFormat) -> TableChanges:
    rows = dict(sorted(step[0].items()))
    keys = np.array(list(rows), np.uint64)
    values = np.repeat(np.array(list(rows.values()), np.float32)[:, None], DIM, axis=1)
    removed = np.array(sorted(step[1] - rows.keys()), np.uint64)
    return TableChanges(keys, encode_rows("ads", keys, values, row_format), removed)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(["float32", "float16", "int8"]))
def test_an_overlay_is_the_sum_of_its_updates(steps: list[Step], row_format: RowFormat) -> None:
    overlay, wanted = TableOverlay(), dict[int, float | None]()
    for step in steps:
        overlay = overlay.after(changes(step, row_format))
        wanted |= dict.fromkeys(step[1] - step[0].keys()) | step[0]
    keys = np.array([*range(31), *range(2**64 - 5, 2**64)], np.uint64)
    rows, known = np.full((len(keys), DIM), 9.0, np.float32), np.ones(len(keys), np.bool_)
    changed = overlay.find(keys, rows, known)
    for key, row, is_known, is_changed in zip(keys.tolist(), rows, known, changed, strict=True):
        assert is_changed == (key in wanted)
        assert is_known == (wanted.get(key, 0.0) is not None)
        np.testing.assert_allclose(row, wanted.get(key, 9.0) or 0.0, rtol=1e-3, atol=1e-6)
    if wanted:
        again = TableOverlay().after(overlay.changes())
        others = np.full_like(rows, 9.0), np.ones_like(known)
        again.find(keys, *others)
        np.testing.assert_array_equal(others[0], rows)
        np.testing.assert_array_equal(others[1], known)


def test_applying_many_small_updates_does_not_copy_all_rows_each_time() -> None:
    overlay = TableOverlay()
    for number in range(200):
        keys = np.arange(number * 10, number * 10 + 10).astype(np.uint64)
        rows = EncodedRows(np.ones((10, DIM), np.float32), None)
        overlay = overlay.after(TableChanges(keys, rows, keys[:0]))
    sizes = [len(run.keys) for run in overlay._runs]
    assert sum(sizes) == len(overlay) == 2000
    assert all(older >= 2 * newer for older, newer in itertools.pairwise(sizes))


def test_who_holds_an_overlay_keeps_seeing_its_moment() -> None:
    keys = np.array([1], np.uint64)

    def one(value: float) -> dict[str, TableChanges]:
        rows = EncodedRows(np.full((1, DIM), value, np.float32), None)
        return {"ads": TableChanges(keys, rows, keys[:0])}

    first = Overlay().after(one(1.0))
    second = first.after(one(2.0))
    for overlay, wanted in ((first, 1.0), (second, 2.0)):
        found = overlay.changes()["ads"]
        assert decode_rows(found.rows)[0, 0] == wanted
    with pytest.raises(ValueError, match="no width"):
        TableOverlay().changes()
