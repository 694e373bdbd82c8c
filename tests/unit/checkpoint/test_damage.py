"""A corpus of damaged checkpoints: each is detected, named and never partly loaded."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.checkpoints import ADS, contents, save, synthetic_rows, two_tables

from sparsefleet.checkpoint import Checkpoint, list_checkpoints
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.errors import (
    CheckpointError,
    CheckpointIoError,
    CheckpointMismatchError,
    CheckpointMissingError,
    CheckpointVersionError,
    CorruptFileError,
)

Damage = Callable[[Path], None]
Case = tuple[Damage, type[CheckpointError], str]

KINDS = {
    "rows": "tables/ads-*/00000-of-00002-*.parquet",
    "rows of the other shard": "tables/ads-*/00001-of-00002-*.parquet",
    "rows of the other table": "tables/words*/00000-of-00002-*.parquet",
    "removed keys": "removed/ads-*/00000-of-00002.parquet",
    "dense": "dense-*.safetensors",
    "workers": "workers-*.json",
    "manifest": "manifest.json",
}


def file_of(folder: Path, kind: str) -> Path:
    (found,) = folder.glob(KINDS[kind])
    return found


def truncate(kind: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        data = file_of(folder, kind).read_bytes()
        file_of(folder, kind).write_bytes(data[: min(int(len(data) * share), len(data) - 3)])

    return damage


def flip(kind: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray(file_of(folder, kind).read_bytes())
        data[min(int(len(data) * share), len(data) - 1)] ^= 0x10
        file_of(folder, kind).write_bytes(data)

    return damage


def append(kind: str) -> Damage:
    def damage(folder: Path) -> None:
        with file_of(folder, kind).open("ab") as file:
            file.write(b"more")

    return damage


def remove(kind: str) -> Damage:
    return lambda folder: file_of(folder, kind).unlink()


def swap(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        first, second = file_of(folder, one), file_of(folder, other)
        data = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)

    return damage


def edit(change: Callable[[dict[str, Any]], object], *, seal: bool = True) -> Damage:
    """Changes the manifest's JSON; with `seal`, also updates the manifest's own checksum."""

    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        value = json.loads(path.read_bytes())
        change(value)
        if seal:
            value.pop("checksum", None)
            text = json.dumps(value, sort_keys=True, separators=(",", ":"))
            value["checksum"] = f"crc32:{zlib.crc32(text.encode()):08x}"
        path.write_text(json.dumps(value))

    return damage


def put(*path: str | int, value: object) -> Damage:
    def change(manifest: Any) -> None:
        for part in path[:-1]:
            manifest = manifest[part]
        manifest[path[-1]] = value

    return edit(change)


def drop(*path: str | int) -> Damage:
    def change(manifest: Any) -> None:
        for part in path[:-1]:
            manifest = manifest[part]
        del manifest[path[-1]]

    return edit(change)


def text(data: bytes) -> Damage:
    return lambda folder: (folder / "manifest.json").write_bytes(data) and None


def rewritten(kind: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """A rewritten row file, with its manifest entry adjusted to match."""

    def damage(folder: Path) -> None:
        path = file_of(folder, kind)
        plain = {"compression": "none", "use_dictionary": False}
        pq.write_table(change(pq.read_table(path)), path, **plain)
        data = path.read_bytes()

        def fit(manifest: dict[str, Any]) -> None:
            for table in manifest["tables"]:
                for entry in table["files"]:
                    if path.as_posix().endswith(entry["path"]):
                        entry |= {"bytes": len(data), "checksum": f"crc32:{zlib.crc32(data):08x}"}

        edit(fit)(folder)

    return damage


_VALUES = pa.field(
    "values", pa.list_(pa.field("element", pa.float32(), nullable=False)), nullable=False
)


def narrow(table: pa.Table) -> pa.Table:
    values = [row[:3] for row in table["values"].to_pylist()]
    return table.set_column(1, _VALUES, pa.array(values, _VALUES.type))


def ragged(table: pa.Table) -> pa.Table:
    values = table["values"].to_pylist()
    values[0], values[1] = values[0] + values[1][:1], values[1][1:]
    return table.set_column(1, _VALUES, pa.array(values, _VALUES.type))


def doubles(table: pa.Table) -> pa.Table:
    return table.set_column(1, "values", table["values"].cast(pa.list_(pa.float64())))


FIRST = ("tables", 0)
FILE = (*FIRST, "files", 0)
CORPUS: dict[str, Case] = {}
for kind, pattern in KINDS.items():
    where = pattern.split("*")[0].rstrip("-")
    for share in (0.0, 0.5, 1.0):
        CORPUS[f"{kind} cut at {share:.0%}"] = (truncate(kind, share), CorruptFileError, where)
    for share in (0.01, 0.3, 0.6, 0.97):
        CORPUS[f"{kind} with a bit flipped at {share:.0%}"] = (
            flip(kind, share),
            CorruptFileError,
            where,
        )
    CORPUS[f"{kind} with more at the end"] = (append(kind), CorruptFileError, where)
    CORPUS[f"{kind} gone"] = (remove(kind), CheckpointMissingError, where)
CORPUS |= {
    "shards swapped": (swap("rows", "rows of the other shard"), CorruptFileError, "ads"),
    "tables swapped": (swap("rows", "rows of the other table"), CorruptFileError, "tables/"),
    "rows for dense": (swap("rows", "dense"), CorruptFileError, "tables/ads"),
    "dense for workers": (swap("workers", "dense"), CorruptFileError, "dense-"),
    "rows of another width": (rewritten("rows", narrow), CorruptFileError, "values: expected 4"),
    "rows of uneven width": (rewritten("rows", ragged), CorruptFileError, "values: expected 4"),
    "rows of another type": (rewritten("rows", doubles), CorruptFileError, "list of double"),
    "a row too few": (
        rewritten("rows", lambda table: table.slice(1)),
        CorruptFileError,
        "rows: expected",
    ),
    "a column too few": (
        rewritten("rows", lambda table: table.drop_columns("state")),
        CorruptFileError,
        "columns: expected",
    ),
    "a column renamed": (
        rewritten("rows", lambda table: table.rename_columns(["id", *table.column_names[1:]])),
        CorruptFileError,
        "columns: expected",
    ),
    "a key twice": (
        rewritten("rows", lambda table: table.take([*range(table.num_rows - 1), 0])),
        CorruptFileError,
        "expected each key once",
    ),
    "a newer format": (
        put("format_version", value=2),
        CheckpointVersionError,
        "version 1, found 2",
    ),
    "a newer format with other fields": (
        edit(lambda m: m.update(format_version=9, tables={}, wings=True), seal=False),
        CheckpointVersionError,
        "version 1, found 9",
    ),
    "format version 0": (put("format_version", value=0), CorruptFileError, "format_version"),
    "format version as text": (put("format_version", value="1"), CorruptFileError, "whole number"),
    "another format": (put("format", value="other"), CorruptFileError, "sparsefleet-checkpoint"),
    "no format": (drop("format"), CorruptFileError, "format"),
    "a step changed": (
        edit(lambda m: m.update(step=m["step"] + 1), seal=False),
        CorruptFileError,
        "checksum of the manifest",
    ),
    "no checksum": (
        edit(lambda m: m.pop("checksum"), seal=False),
        CorruptFileError,
        "checksum of the manifest",
    ),
    "a negative step": (put("step", value=-1), CorruptFileError, "step"),
    "a step as true": (put("step", value=True), CorruptFileError, "step"),
    "no step": (drop("step"), CorruptFileError, "manifest.step: required field is missing"),
    "a field nobody knows": (put("wings", value=2), CorruptFileError, r"no other field.*wings"),
    "time that is none": (put("created", value="yesterday"), CorruptFileError, "created"),
    "a token that is none": (put("token", value="abc"), CorruptFileError, "token"),
    "another token": (put("token", value="0" * 16), CorruptFileError, "expected"),
    "kind and base at odds": (put("kind", value="full"), CorruptFileError, "kind"),
    "a base that is a list": (put("base", value=[]), CorruptFileError, "base: expected an object"),
    "no base": (put("base", value=None), CorruptFileError, "removed"),
    "a base that is gone": (put("base", "path", value="../z"), CheckpointMissingError, "/z"),
    "a base of another save": (
        put("base", "token", value="0" * 16),
        CheckpointMismatchError,
        "expected the save 0000",
    ),
    "tables as an object": (put("tables", value={}), CorruptFileError, "tables: expected a list"),
    "a table twice": (
        edit(lambda m: m["tables"].append(m["tables"][0])),
        CorruptFileError,
        "different names",
    ),
    "a table without a name": (put(*FIRST, "name", value=""), CorruptFileError, "name"),
    "a table renamed": (put(*FIRST, "name", value="abs"), CorruptFileError, "path below"),
    "no width": (put(*FIRST, "dim", value=0), CorruptFileError, "dim"),
    "a wide table": (put(*FIRST, "dim", value=5), CheckpointMismatchError, "expected 5, found 4"),
    "a width in halves": (put(*FIRST, "dim", value=4.5), CorruptFileError, "dim"),
    "an optimizer without a name": (put(*FIRST, "optimizer", value={}), CorruptFileError, "kind"),
    "state of another width": (
        put(*FIRST, "state", 0, "width", value=3),
        CheckpointMismatchError,
        r"state: expected 'sum\[3\]'",
    ),
    "state without a width": (drop(*FIRST, "state", 0, "width"), CorruptFileError, "width"),
    "no state": (put(*FIRST, "state", value=[]), CheckpointMismatchError, "expected 'none'"),
    "counters out of order": (
        put(*FIRST, "counters", value=["step", "count"]),
        CorruptFileError,
        "in order",
    ),
    "a counter less": (
        put(*FIRST, "counters", value=["count"]),
        CheckpointMismatchError,
        "counters: expected",
    ),
    "a sum of rows that is wrong": (put(*FIRST, "rows", value=7), CorruptFileError, "sum over its"),
    "a sum of removed keys that is wrong": (
        put(*FIRST, "removed_keys", value=9),
        CorruptFileError,
        "sum over its files",
    ),
    "shards without number": (put(*FIRST, "num_shards", value=0), CorruptFileError, "num_shards"),
    "more shards than files": (put(*FIRST, "num_shards", value=3), CorruptFileError, "shard"),
    "a shard too high": (put(*FILE, "shard", value=5), CorruptFileError, "below 2"),
    "shards mixed up": (put(*FILE, "shard", value=1), CorruptFileError, "shard"),
    "a file less": (drop(*FILE), CorruptFileError, "sum over its files"),
    "a file twice": (
        edit(
            lambda m: m["tables"][0].update(
                files=m["tables"][0]["files"] + m["tables"][0]["files"][:1],
                rows=m["tables"][0]["rows"] + m["tables"][0]["files"][0]["rows"],
            )
        ),
        CorruptFileError,
        "each file once",
    ),
    "a file outside": (put(*FILE, "path", value="../../etc/passwd"), CorruptFileError, "relative"),
    "a file at the root": (put(*FILE, "path", value="/etc/passwd"), CorruptFileError, "relative"),
    "a file without a name": (put(*FILE, "path", value=""), CorruptFileError, "relative path"),
    "bytes that are wrong": (put(*FILE, "bytes", value=10), CorruptFileError, "bytes: expected 10"),
    "a checksum that is wrong": (
        put(*FILE, "checksum", value="crc32:00000000"),
        CorruptFileError,
        "checksum: expected crc32:00000000",
    ),
    "a checksum of another kind": (
        put(*FILE, "checksum", value="md5:1"),
        CorruptFileError,
        "crc32",
    ),
    "a tensor of another shape": (
        put("dense", 0, "shape", value=[3, 2]),
        CorruptFileError,
        r"expected 'mlp.weight' float32\[3, 2\], found .*\[2, 3\]",
    ),
    "a tensor more": (
        edit(lambda m: m["dense"].append({"name": "x", "dtype": "float32", "shape": []})),
        CorruptFileError,
        "expected 'x' .* found none",
    ),
    "a tensor less": (put("dense", value=[]), CorruptFileError, "found .*mlp.weight"),
    "a tensor twice": (
        edit(lambda m: m["dense"].append(m["dense"][0])),
        CorruptFileError,
        "different names",
    ),
    "the file of another kind": (
        edit(lambda m: m.update(dense_file=m["workers_file"], workers_file=None)),
        CorruptFileError,
        "dense_file: expected dense-",
    ),
    "tensors without a file": (put("dense_file", value=None), CorruptFileError, "dense_file"),
    "an empty manifest": (text(b""), CorruptFileError, "expected JSON"),
    "a manifest of zeros": (text(bytes(500)), CorruptFileError, "expected JSON"),
    "a manifest that is a list": (text(b"[]"), CorruptFileError, "expected a JSON object"),
    "a manifest that is no text": (text(b"\xff\xfe\x00"), CorruptFileError, "expected JSON"),
    "a field twice": (text(b'{"format": 1, "format": 1}'), CorruptFileError, "each field once"),
    "not a number": (text(b'{"format": NaN}'), CorruptFileError, "finite numbers"),
    "a manifest without end": (text(b"[" * 100_000), CorruptFileError, "expected JSON"),
}


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full checkpoint `a` and a delta `b` based on it, with every kind of file."""
    folder = tmp_path_factory.mktemp("series")
    save(str(folder / "a"), two_tables(), num_shards=2)
    save(
        str(folder / "b"),
        two_tables(1, 100),
        num_shards=2,
        base=str(folder / "a"),
        removed={"ads": range(150, 190)},
    )
    return folder


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 50


@pytest.mark.parametrize("name", CORPUS)
def test_damage_is_found_by_verify_and_by_reading(series: Path, tmp_path: Path, name: str) -> None:
    damage, kind, message = CORPUS[name]
    shutil.copytree(series, tmp_path / "series")
    folder = tmp_path / "series" / "b"
    damage(folder)
    with pytest.raises(kind, match=message) as caught:
        Checkpoint.open(str(folder)).verify()
    assert str(tmp_path / "series") in str(caught.value), "the message names the file"
    if name != "a key twice":  # found only by verify, because the check needs memory for all keys
        with pytest.raises(CheckpointError):
            contents(Checkpoint.open(str(folder)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_single_flipped_bit_goes_unseen(series: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(series, tmp_path / "series")
    folder = tmp_path / "series" / "b"
    path = file_of(folder, kind)
    data = path.read_bytes()
    before = Checkpoint.open(str(folder)).manifest
    draw = np.random.default_rng(0)
    for place in draw.integers(0, 8 * len(data), 150).tolist():
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            checkpoint = Checkpoint.open(str(folder))
            for entry in checkpoint.manifest.files():
                checkpoint.check_file(entry)
        except CheckpointError:
            continue
        assert kind == "manifest", "only there are bytes without meaning: blanks"
        assert checkpoint.manifest == before


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((*FIRST, "dim"), 5, "values: expected 5 values in each row"),
        ((*FIRST, "state", 0, "width"), 3, "state: expected 3 values in each row"),
        ((*FIRST, "state"), [], "columns: expected key uint64, values list of float, counters"),
        ((*FIRST, "counters"), ["count"], "counters: expected 1 values in each row"),
    ],
)
def test_widths_that_are_not_those_of_the_files_are_found(
    series: Path, tmp_path: Path, place: tuple[str | int, ...], value: object, message: str
) -> None:
    shutil.copytree(series / "a", tmp_path / "a")
    put(*place, value=value)(tmp_path / "a")
    checkpoint = Checkpoint.open(str(tmp_path / "a"))
    with pytest.raises(CorruptFileError, match=f"tables/ads.*{message}"):
        checkpoint.verify()
    with pytest.raises(CorruptFileError, match=message):
        list(checkpoint.rows("ads"))


def test_damage_of_the_base_is_found_through_the_delta(series: Path, tmp_path: Path) -> None:
    shutil.copytree(series, tmp_path / "series")
    flip("rows", 0.5)(tmp_path / "series" / "a")
    checkpoint = Checkpoint.open(str(tmp_path / "series" / "b"))
    with pytest.raises(CorruptFileError, match="series/a/tables/ads"):
        checkpoint.verify()
    with pytest.raises(CorruptFileError, match="series/a/tables/ads"):
        list(checkpoint.rows("ads"))
    assert len(list(Checkpoint.open(str(tmp_path / "series" / "b")).problems())) == 1


def test_all_problems_are_listed(series: Path, tmp_path: Path) -> None:
    shutil.copytree(series, tmp_path / "series")
    folder = tmp_path / "series" / "b"
    remove("rows")(folder)
    flip("dense", 0.9)(folder)
    truncate("workers", 0.5)(folder)
    problems = list(Checkpoint.open(str(folder)).problems())
    assert sorted(type(problem).__name__ for problem in problems) == [
        "CheckpointMissingError",
        "CorruptFileError",
        "CorruptFileError",
    ]


def test_a_manifest_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(CheckpointIoError, match="manifest.json"):
        Checkpoint.open(str(tmp_path))


def test_a_save_over_a_damaged_checkpoint_makes_a_whole_one(tmp_path: Path) -> None:
    save(str(tmp_path), two_tables())
    flip("manifest", 0.5)(tmp_path)
    save(str(tmp_path), two_tables(3))
    Checkpoint.open(str(tmp_path)).verify()
    assert len(list(tmp_path.glob("dense-*"))) == 1


def test_listing_a_series_tells_of_damage(tmp_path: Path) -> None:
    save(str(tmp_path / "step-000000000001"), two_tables(), step=1)
    save(str(tmp_path / "step-000000000002"), two_tables(), step=2)
    flip("manifest", 0.5)(tmp_path / "step-000000000002")
    first, second = list_checkpoints(str(tmp_path))
    assert first.problem is None
    assert isinstance(second.problem, CorruptFileError)
    assert second.manifest is None


def test_a_delta_needs_the_same_optimizer(tmp_path: Path) -> None:
    save(str(tmp_path / "a"), two_tables())
    other = replace(ADS, optimizer={"kind": "decayed_adagrad"})
    with PendingCheckpoint.begin(str(tmp_path / "b")) as pending:
        files = pending.write_rows(other, 0, 1, [synthetic_rows(other, [1])])
        with pytest.raises(CheckpointMismatchError, match="optimizer"):
            pending.commit(step=1, tables=[other.with_files(files)], base=str(tmp_path / "a"))
