from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.checkpoints import ADS, WORDS, contents, save, synthetic_rows, two_tables

from sparsefleet.checkpoint import Checkpoint, RowChunk, compact, diff
from sparsefleet.errors import CorruptFileError


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Three checkpoints, each based on the one before, with 2, 2 and 3 shards."""
    save(str(tmp_path / "a"), two_tables(), num_shards=2, step=1)
    save(
        str(tmp_path / "b"),
        two_tables(1, 60),
        num_shards=2,
        step=2,
        base=str(tmp_path / "a"),
        removed={"ads": [100, 101]},
    )
    save(
        str(tmp_path / "c"),
        two_tables(2, 30),
        num_shards=3,
        step=3,
        base=str(tmp_path / "b"),
        removed={"words/de": [2**63 + 70]},
    )
    return tmp_path


@pytest.mark.parametrize("name", ["b", "c"])
def test_a_compacted_checkpoint_has_the_same_contents(series: Path, name: str) -> None:
    before = contents(Checkpoint.open(str(series / name)))
    manifest = compact(str(series / name))
    assert manifest.kind == "full"
    found = Checkpoint.open(str(series / name))
    assert len(found.chain) == 1
    found.verify()
    assert contents(found) == before
    assert found.manifest.notes == {"model": "test"}


def test_deltas_on_a_compacted_checkpoint_keep_working(series: Path) -> None:
    before = contents(Checkpoint.open(str(series / "c")))
    compact(str(series / "b"))
    found = Checkpoint.open(str(series / "c"))
    assert len(found.chain) == 2
    found.verify()
    assert contents(found) == before
    assert compact(str(series / "b")) == found.chain[1].manifest, "a full one stays as it is"


def test_compaction_to_another_place_leaves_the_delta_alone(series: Path) -> None:
    compact(str(series / "c"), str(series / "full"))
    assert Checkpoint.open(str(series / "c")).manifest.kind == "delta"
    full = Checkpoint.open(str(series / "full"))
    full.verify()
    assert contents(full) == contents(Checkpoint.open(str(series / "c")))


def test_a_damaged_delta_is_not_compacted(series: Path) -> None:
    file = next((series / "a").glob("tables/ads-*/*.parquet"))
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFileError, match="checksum"):
        compact(str(series / "c"))
    assert Checkpoint.open(str(series / "c")).manifest.kind == "delta"


def test_equal_checkpoints_do_not_differ(series: Path) -> None:
    compact(str(series / "c"), str(series / "full"))
    found = diff(Checkpoint.open(str(series / "c")), Checkpoint.open(str(series / "full")))
    assert found.is_same
    assert [table.same for table in found.tables] == [198, 99]


def test_differences_of_rows_are_counted_and_named(tmp_path: Path) -> None:
    rows = synthetic_rows(ADS, range(100))
    save(str(tmp_path / "a"), [(ADS, rows)], num_shards=2, step=5)
    values, state, counters = (array.copy() for array in rows[1:])
    values[3, 1] = np.nextafter(values[3, 1], np.float32(9), dtype=np.float32)
    state[4, 0] += 1
    counters[5, 1] += np.uint32(1)
    changed = RowChunk(rows.keys + np.uint64(0), values, state, counters)
    changed = changed.only(rows.keys != 50)
    extra = synthetic_rows(ADS, [1000, 1001])
    together = RowChunk(*map(np.concatenate, zip(changed, extra, strict=True)))
    save(str(tmp_path / "b"), [(ADS, together)], num_shards=3, step=6)
    a, b = Checkpoint.open(str(tmp_path / "a")), Checkpoint.open(str(tmp_path / "b"))
    found = diff(a, b)
    (table,) = found.tables
    assert (table.same, table.changed, table.values_changed) == (96, 3, 1)
    assert sorted(table.keys["changed"]) == [3, 4, 5]
    assert table.keys["only_in_a"] == [50]
    assert sorted(table.keys["only_in_b"]) == [1000, 1001]
    assert (found.step_a, found.step_b, found.is_same) == (5, 6, False)
    assert diff(a, b, max_keys=1).tables[0].changed == 3
    assert len(diff(a, b, max_keys=1).tables[0].keys["changed"]) == 1
    assert found.to_json()["tables"][0]["changed"] == 3


def test_large_tables_are_compared_in_parts(series: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Checkpoint.open(str(series / "a")), Checkpoint.open(str(series / "c"))
    whole = diff(a, b, max_keys=1000)
    monkeypatch.setitem(diff.__globals__, "_PART_ROWS", 17)
    parts = diff(a, b, max_keys=1000)
    for one, other in zip(whole.tables, parts.tables, strict=True):
        assert replace(one, keys={}) == replace(other, keys={})
        assert {k: sorted(v) for k, v in one.keys.items()} == {
            k: sorted(v) for k, v in other.keys.items()
        }


def test_tables_of_one_side_and_other_layouts_are_reported(tmp_path: Path) -> None:
    wide = replace(WORDS, dim=9)
    save(str(tmp_path / "a"), two_tables())
    save(str(tmp_path / "b"), [(wide, synthetic_rows(wide, range(7)))])
    found = diff(Checkpoint.open(str(tmp_path / "a")), Checkpoint.open(str(tmp_path / "b")))
    ads, words = found.tables
    assert (ads.name, ads.only_in_a, ads.only_in_b) == ("ads", 200, 0)
    assert words.layout == "width: 3 and 9"
    assert not words.is_same


def test_differences_of_tensors_are_reported(tmp_path: Path) -> None:
    a = {"same": np.ones(3), "moved": np.zeros(3, np.float32), "shape": np.ones(3), "a": np.ones(1)}
    b = {"same": np.ones(3), "moved": np.float32([0, -2, 1]), "shape": np.ones(4), "b": np.ones(1)}
    save(str(tmp_path / "a"), [], dense=a)
    save(str(tmp_path / "b"), [], dense=b)
    found = diff(Checkpoint.open(str(tmp_path / "a")), Checkpoint.open(str(tmp_path / "b")))
    assert [(entry.name, entry.what, entry.max_difference) for entry in found.dense] == [
        ("moved", "values", 2.0),
        ("shape", "shape", None),
        ("a", "only_in_a", None),
        ("b", "only_in_b", None),
    ]
