from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoints import (
    ADS,
    WORDS,
    as_table,
    contents,
    save,
    synthetic_rows,
    two_tables,
)

from sparsefleet import _core
from sparsefleet.checkpoint import Checkpoint, RowChunk
from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import RowLayout, shard_of
from sparsefleet.checkpoint.row_file_writer import RowFileWriter
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)


def test_a_save_comes_back_bit_for_bit(tmp_path: Path) -> None:
    rows = two_tables()
    dense = {
        "weight": np.random.default_rng(0).standard_normal((3, 5), np.float32),
        "weight/sum": np.full((3, 5), np.inf, np.float32),
        "steps": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float16),
        "mask": np.array([True, False]),
    }
    workers = [{"rank": 0, "files": ["a", "b"], "at": [1, 2.5]}, {"rank": 1}]
    save(str(tmp_path), rows, num_shards=2, step=12, dense=dense, workers=workers)
    checkpoint = Checkpoint.open(str(tmp_path))
    checkpoint.verify()
    found = contents(checkpoint)
    assert found["step"] == 12
    assert found["rows"] == {table.name: as_table([chunk]) for table, chunk in rows}
    assert found["workers"] == workers
    assert checkpoint.manifest.notes == {"model": "test"}
    tensors = checkpoint.dense()
    assert list(tensors) == list(dense)
    for name, tensor in dense.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert tensors[name].tobytes() == tensor.tobytes()


def test_shards_are_those_of_the_servers() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 500, np.uint64)
    keys[:3] = (0, 2**63, 2**64 - 1)
    for count in (1, 2, 3, 7, 1000):
        assert shard_of(keys, count).tolist() == [_core.owner_of(k, count) for k in keys.tolist()]


@pytest.mark.parametrize("written", [1, 2, 3])
@pytest.mark.parametrize("read", [1, 2, 3, 5])
def test_any_number_of_servers_gets_each_row_once(tmp_path: Path, written: int, read: int) -> None:
    rows = two_tables(count=500)
    save(str(tmp_path), rows, num_shards=written)
    checkpoint = Checkpoint.open(str(tmp_path))
    together = {}
    for index in range(read):
        part = as_table(checkpoint.rows("ads", shard=(index, read)))
        assert {_core.owner_of(key, read) for key in part} <= {index}
        assert not together.keys() & part.keys()
        together |= part
    assert together == as_table([rows[0][1]])


def test_columns_that_are_not_asked_for_have_no_width(tmp_path: Path) -> None:
    rows = two_tables()
    save(str(tmp_path), rows)
    checkpoint = Checkpoint.open(str(tmp_path))
    (chunk,) = checkpoint.rows("ads", columns=("values",))
    assert np.array_equal(chunk.values, rows[0][1].values)
    assert chunk.state.shape == (200, 0)
    assert chunk.counters.shape == (200, 0)
    (keys,) = checkpoint.rows("ads", columns=())
    assert keys.values.shape == (200, 0)
    with pytest.raises(ConfigError, match="columns"):
        checkpoint.rows("ads", columns=("value",))
    for wrong in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="shard must be"):
            checkpoint.rows("ads", shard=wrong)


def test_a_table_without_rows_is_saved(tmp_path: Path) -> None:
    save(str(tmp_path), [(ADS, synthetic_rows(ADS, []))], num_shards=3)
    checkpoint = Checkpoint.open(str(tmp_path))
    checkpoint.verify()
    assert list(checkpoint.rows("ads")) == []
    assert checkpoint.manifest.table("ads").num_rows == 0


Change = tuple[dict[int, int], set[int]]
CHANGES = st.tuples(
    st.dictionaries(st.integers(0, 40), st.integers(0, 1000), max_size=25),
    st.sets(st.integers(0, 40), max_size=8),
)


@settings(max_examples=25, deadline=None)
@given(
    first=st.dictionaries(st.integers(0, 40), st.integers(0, 1000), max_size=40),
    changes=st.lists(CHANGES, min_size=1, max_size=4),
    shards=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_base_and_deltas_are_the_full_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
    first: dict[int, int],
    changes: list[Change],
    shards: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("series")

    def rows_of(seeds: dict[int, int]) -> list[tuple[TableEntry, RowChunk]]:
        parts = [synthetic_rows(WORDS, [])]
        parts += [synthetic_rows(WORDS, [key], seed) for key, seed in seeds.items()]
        return [(WORDS, RowChunk(*map(np.concatenate, zip(*parts, strict=True))))]

    state = dict(first)
    save(str(folder / "0"), rows_of(state), num_shards=shards[0])
    for place, (written, removed) in enumerate(changes, 1):
        removed = removed - written.keys()
        state |= written
        state = {key: seed for key, seed in state.items() if key not in removed}
        base = str(folder / str(place - 1))
        gone = {WORDS.name: removed}
        path = str(folder / str(place))
        save(path, rows_of(written), num_shards=shards[place], base=base, removed=gone)
    last = Checkpoint.open(str(folder / str(len(changes))))
    last.verify()
    assert as_table(last.rows(WORDS.name)) == as_table([rows_of(state)[0][1]])
    parts = [as_table(last.rows(WORDS.name, shard=(index, 2))) for index in range(2)]
    assert parts[0] | parts[1] == as_table([rows_of(state)[0][1]])


def test_a_table_that_began_after_the_base_is_read_from_the_deltas(tmp_path: Path) -> None:
    both = two_tables()
    save(str(tmp_path / "a"), both[:1])
    save(str(tmp_path / "b"), both, base=str(tmp_path / "a"))
    checkpoint = Checkpoint.open(str(tmp_path / "b"))
    assert as_table(checkpoint.rows(WORDS.name)) == as_table([both[1][1]])


def test_a_base_that_was_written_over_is_noticed(tmp_path: Path) -> None:
    base, delta = str(tmp_path / "a"), str(tmp_path / "b")
    save(base, two_tables())
    save(delta, two_tables(1), base=base)
    save(base, two_tables(2))
    checkpoint = Checkpoint.open(delta)
    with pytest.raises(CheckpointMismatchError, match="expected the save .* found"):
        list(checkpoint.rows("ads"))
    with pytest.raises(CheckpointMismatchError, match="manifest.json: base"):
        checkpoint.verify(deep=False)


def test_a_folder_of_base_and_delta_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    save(str(tmp_path / "old" / "a"), two_tables())
    save(str(tmp_path / "old" / "b"), two_tables(1, 50), base=str(tmp_path / "old" / "a"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert len(as_table(Checkpoint.open(str(tmp_path / "new" / "b")).rows("ads"))) == 200


def test_a_delta_may_build_on_a_checkpoint_in_another_store(tmp_path: Path) -> None:
    save("memory://elsewhere/delta", two_tables(1, 50), base=_saved(tmp_path / "a"))
    save(str(tmp_path / "b"), two_tables(2, 20), base="memory://elsewhere/delta")
    checkpoint = Checkpoint.open(str(tmp_path / "b"))
    assert [link.path for link in checkpoint.chain] == [
        str(tmp_path / "b"),
        "memory://elsewhere/delta",
        str(tmp_path / "a"),
    ]
    assert len(as_table(checkpoint.rows("ads"))) == 200


def _saved(path: Path) -> str:
    save(str(path), two_tables())
    return str(path)


def test_a_delta_cannot_replace_its_base_or_change_the_width(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    save(path, two_tables())
    before = contents(Checkpoint.open(path))
    with pytest.raises(ConfigError, match="own base"):
        save(path, two_tables(1), base=path)
    wide = replace(ADS, dim=5)
    with pytest.raises(CheckpointMismatchError, match="width: expected 5, found 4"):
        save(str(tmp_path / "b"), [(wide, synthetic_rows(wide, [1]))], base=path)
    assert contents(Checkpoint.open(path)) == before
    assert not (tmp_path / "b").exists()


def test_another_model_is_refused_by_name_width_and_optimizer(tmp_path: Path) -> None:
    save(str(tmp_path), two_tables())
    checkpoint = Checkpoint.open(str(tmp_path))
    with pytest.raises(
        CheckpointMismatchError, match="expected table 'users', found 'ads', 'words"
    ):
        checkpoint.rows("users")
    found = checkpoint.manifest.table("ads")
    found.require_same(replace(ADS, optimizer={"kind": "adagrad", "lr": 9.0}), "here")
    for other, message in (
        (replace(ADS, dim=8), "width: expected 8, found 4"),
        (replace(ADS, optimizer={"kind": "adam"}), "optimizer: expected 'adam', found 'adagrad'"),
        (replace(ADS, state=()), r"state: expected 'none', found 'sum\[4\]'"),
        (replace(ADS, counters=()), r"counters: expected \[\], found \['count', 'step'\]"),
    ):
        with pytest.raises(CheckpointMismatchError, match=message):
            found.require_same(other, "here")


def test_rows_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    chunk = synthetic_rows(ADS, range(3))
    with PendingCheckpoint.begin(str(tmp_path / "new")) as pending:
        for wrong in (
            chunk._replace(values=chunk.values[:, :3]),
            chunk._replace(state=chunk.state[:2]),
            chunk._replace(keys=chunk.keys.astype(np.int64)),
            chunk._replace(counters=chunk.counters.astype(np.float32)),
        ):
            with pytest.raises(ConfigError, match="table 'ads'.* must be"):
                pending.write_rows(ADS, 0, 1, [wrong])
    assert not (tmp_path / "new").exists()


def test_files_of_a_shard_are_split_by_size(tmp_path: Path) -> None:
    rows = synthetic_rows(ADS, range(400_000))
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        layout = RowLayout.of(ADS)
        with RowFileWriter(pending.path, pending.token, layout, max_file_bytes=1 << 20) as writer:
            for part in range(2):
                writer.write(type(rows)(*(column[part::2] for column in rows)))
        files = writer.close()
        assert [file.path[-13:] for file in files] == ["00000.parquet", "00001.parquet"]
        pending.commit(step=0, tables=[ADS.with_files(files)])
    checkpoint = Checkpoint.open(str(tmp_path))
    checkpoint.verify()
    assert sum(len(chunk.keys) for chunk in checkpoint.rows("ads")) == 400_000


def test_a_commit_looks_at_the_files_of_others(tmp_path: Path) -> None:
    save(str(tmp_path), two_tables())
    before = contents(Checkpoint.open(str(tmp_path)))
    pending = PendingCheckpoint.begin(str(tmp_path))
    files = pending.write_rows(ADS, 0, 1, [synthetic_rows(ADS, [1])])
    (tmp_path / files[0].path).unlink()
    with pytest.raises(CheckpointMissingError, match="00000-of-00001"):
        pending.commit(step=1, tables=[ADS.with_files(files)])
    pending = PendingCheckpoint.begin(str(tmp_path))
    files = pending.write_rows(ADS, 0, 1, [synthetic_rows(ADS, [1])])
    with open(tmp_path / files[0].path, "ab") as file:
        file.write(b"!")
    with pytest.raises(CorruptFileError, match="bytes: expected"):
        pending.commit(step=1, tables=[ADS.with_files(files)])
    with pytest.raises(ConfigError, match="already committed"):
        pending.commit(step=1)
    assert contents(Checkpoint.open(str(tmp_path))) == before


def test_every_shard_must_have_been_written(tmp_path: Path) -> None:
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        rows = synthetic_rows(ADS, [1])
        files = pending.write_rows(ADS, 0, 2, [rows])
        with pytest.raises(
            ConfigError, match=r"one or more for each shard, found 'none for \[1\]'"
        ):
            pending.commit(step=1, tables=[ADS.with_files(files, num_shards=2)])


def test_keys_in_the_wrong_shard_or_twice_are_found_by_verify(tmp_path: Path) -> None:
    rows = synthetic_rows(ADS, range(50))
    with PendingCheckpoint.begin(str(tmp_path / "a")) as pending:
        files = [pending.write_rows(ADS, shard, 2, [rows])[0] for shard in range(2)]
        pending.commit(step=1, tables=[ADS.with_files(files, num_shards=2)])
    with pytest.raises(CorruptFileError, match="expected keys of shard 0 of 2, found"):
        Checkpoint.open(str(tmp_path / "a")).verify()
    with PendingCheckpoint.begin(str(tmp_path / "b")) as pending:
        files = pending.write_rows(ADS, 0, 1, [rows, synthetic_rows(ADS, [7])])
        pending.commit(step=1, tables=[ADS.with_files(files)])
    with pytest.raises(CorruptFileError, match="found 1 duplicates, for example key 7"):
        Checkpoint.open(str(tmp_path / "b")).verify()


def test_tensors_that_cannot_be_saved_are_named(tmp_path: Path) -> None:
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        with pytest.raises(ConfigError, match="tensor 'z': type complex64"):
            pending.write_dense({"z": np.zeros(2, np.complex64)})
        with pytest.raises(ConfigError, match="__metadata__"):
            pending.write_dense({"__metadata__": np.zeros(2)})
        with pytest.raises(ConfigError, match=r"workers\[0\].a: expected a finite number"):
            pending.write_workers([{"a": float("nan")}])


def test_no_checkpoint_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="expected a checkpoint, found no manifest"):
        Checkpoint.open(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        Checkpoint.open(str(tmp_path))


def test_a_circle_of_deltas_ends(tmp_path: Path) -> None:
    """The manifests were edited by hand."""
    save(str(tmp_path / "a"), two_tables())
    save(str(tmp_path / "b"), two_tables(1), base=str(tmp_path / "a"))
    first, second = (Checkpoint.open(str(tmp_path / name)).manifest for name in "ab")
    circle = replace(first, base=replace(second.base, path="../b", token=second.token))
    (tmp_path / "a" / "manifest.json").write_bytes(circle.to_bytes())
    with pytest.raises(CheckpointError, match="expected an older checkpoint, found"):
        list(Checkpoint.open(str(tmp_path / "b")).rows("ads"))


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    save(str(tmp_path), two_tables(), step=3)
    value = json.loads((tmp_path / "manifest.json").read_text())
    assert value["format"] == "sparsefleet-checkpoint"
    assert value["step"] == 3
    assert [table["rows"] for table in value["tables"]] == [200, 100]
