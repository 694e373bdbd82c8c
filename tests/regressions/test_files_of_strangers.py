"""Checkpoints and exports from strangers: bounded memory, no other services, no endless reads.

Found by attacking: a row file of 44 KB that became 1.2 GB, a checkpoint whose base was a URL of any
fsspec driver, links to devices and pipes in place of files, and numbers and nesting that ended in
errors of Python instead of a refusal.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.checkpoints import save, two_tables
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import checksum_text, open_folder
from sparsefleet.checkpoint.json_fields import canonical
from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError
from sparsefleet.serving.export import load_inference_model
from sparsefleet.serving.export.export_directory import sha256_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save(str(tmp_path / "base"), two_tables())
    save(str(tmp_path / "delta"), two_tables(1, 50), base=str(tmp_path / "base"))
    return tmp_path / "delta"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_shop()[0], tmp_path / "export"))


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint and seal it again."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest.pop("checksum")
    change(manifest)
    for entry in [*manifest["tables"][0]["files"], manifest["workers_file"]]:
        data = (checkpoint / entry["path"]).read_bytes()
        entry |= {"bytes": len(data), "checksum": checksum_text(zlib.crc32(data))}
    manifest["checksum"] = checksum_text(zlib.crc32(canonical(manifest)))
    path.write_text(json.dumps(manifest))


def rows_of(checkpoint: Path) -> Path:
    return next((checkpoint / "tables").glob("ads-*/*.parquet"))


def read(checkpoint: Path) -> None:
    Checkpoint.open(str(checkpoint)).verify()


@pytest.mark.parametrize(
    "base",
    ["http://{host}/run", "simplecache::http://{host}/run", "zip://a::http://{host}/run.zip"],
)
def test_base_of_a_checkpoint_does_not_reach_other_services(checkpoint: Path, base: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.0)
        url = base.format(host=f"127.0.0.1:{stranger.getsockname()[1]}")
        rewrite(checkpoint, lambda manifest: manifest["base"].update(path=url))
        with pytest.raises(ConfigError, match="expected a path, or the URL of a disk or an object"):
            read(checkpoint)
        with pytest.raises(BlockingIOError):
            stranger.accept()


def flat(count: int, value: int, dtype: Any) -> Any:
    return pa.array(np.full(count, value, dtype))


def lists(count: int, width: int, dtype: Any) -> Any:
    places = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
    kind = pa.list_(pa.field("element", pa.from_numpy_dtype(dtype), nullable=False))
    return pa.ListArray.from_arrays(places, flat(count * width, 0, dtype), type=kind)


_PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def rows_file(path: Path, count: int, keys: Any = None, **options: Any) -> None:
    """Write rows of the table 'ads' with Arrow."""
    columns = {
        "key": flat(count, 1, np.uint64) if keys is None else keys,
        "values": lists(count, 4, np.float32),
        "state": lists(count, 4, np.float32),
        "counters": lists(count, 2, np.uint32),
    }
    fields = [
        pa.field(name, column.type, nullable=bool(column.null_count))
        for name, column in columns.items()
    ]
    pq.write_table(pa.table(columns, pa.schema(fields)), path, **{**_PLAIN, **options})


def set_rows(count: int) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["tables"][0]["rows"] = count
        manifest["tables"][0]["files"][0]["rows"] = count

    return change


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"compression": "zstd"}, "ZSTD"),
        ({"compression": "gzip"}, "GZIP"),
        ({"use_dictionary": True}, "DICTIONARY"),
        ({"column_encoding": {"key": "DELTA_BINARY_PACKED"}}, "DELTA_BINARY_PACKED"),
    ],
)
def test_parquet_that_expands_is_refused(
    checkpoint: Path, options: dict[str, Any], found: str
) -> None:
    rows_file(rows_of(checkpoint), 100_000, **options)
    rewrite(checkpoint, set_rows(100_000))
    with pytest.raises(CorruptFileError, match=f"expected plain values, found .*{found}"):
        read(checkpoint)


def test_key_that_is_null_is_refused(checkpoint: Path) -> None:
    rows_file(rows_of(checkpoint), 2, keys=pa.array([None, 7], pa.uint64()))
    rewrite(checkpoint, set_rows(2))
    with pytest.raises(CorruptFileError, match="found key uint64 with nulls"):
        read(checkpoint)


def test_value_that_is_null_is_refused(checkpoint: Path) -> None:
    path = rows_of(checkpoint)
    kinds = {"values": pa.float32(), "state": pa.float32(), "counters": pa.uint32()}
    table = {name: pa.array([[None] * 4], pa.list_(kind)) for name, kind in kinds.items()}
    pq.write_table(pa.table({"key": pa.array([1], pa.uint64()), **table}), path, **_PLAIN)
    rewrite(checkpoint, set_rows(1))
    with pytest.raises(CorruptFileError, match="values list of float with nulls"):
        read(checkpoint)


def test_workers_nested_too_deep_are_refused(checkpoint: Path) -> None:
    next(checkpoint.glob("workers-*.json")).write_text("[" * 100_000)
    rewrite(checkpoint, lambda _: None)
    with pytest.raises(CorruptFileError, match="expected JSON"):
        Checkpoint.open(str(checkpoint)).workers()


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe])
def test_device_or_pipe_is_not_read_as_a_manifest(
    checkpoint: Path, export: Path, replace: Callable[[Path], None]
) -> None:
    replace(checkpoint / "manifest.json")
    with pytest.raises(CorruptFileError, match="expected a file, found a device or pipe"):
        read(checkpoint)
    replace(export / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json is not a regular file"):
        load_inference_model(export)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe])
def test_device_or_pipe_is_not_read_as_a_graph(
    export: Path, replace: Callable[[Path], None]
) -> None:
    name = json.loads((export / "manifest.json").read_text())["graph"]
    replace(export / name)
    set_in(export, lambda content: entry_of(content, name).update(bytes=0))
    with pytest.raises(CorruptFileError, match="is not a regular file"):
        load_inference_model(export)


def test_manifest_of_any_size_is_not_read_whole(checkpoint: Path, export: Path) -> None:
    for path in (checkpoint, export):
        os.truncate(path / "manifest.json", 1 << 40)  # a sparse file
    with pytest.raises(CorruptFileError, match="expected at most"):
        read(checkpoint)
    with pytest.raises(CheckpointError, match="expected at most"):
        load_inference_model(export)


def set_in(export: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = export / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def entry_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in content["files"] if entry["name"] == name)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_rows_of_an_export_are_refused(export: Path, compression: str) -> None:
    content = json.loads((export / "manifest.json").read_text())
    table = content["tables"][0]
    path = export / table["file"]
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema, options=options) as writer,
    ):
        writer.write_batch(batch)
    size, digest = path.stat().st_size, sha256_of(path)
    set_in(export, lambda found: entry_of(found, path.name).update(bytes=size, sha256=digest))
    with pytest.raises(CorruptFileError, match="is compressed, expected plain rows"):
        load_inference_model(export)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["tables"][0].update(dim=2**40), "is not a row file"),
        (lambda content: content["tables"][0]["initial"].update(a=10**400), "must be a number"),
    ],
)
def test_numbers_out_of_range_in_an_export_are_refused(
    export: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    set_in(export, change)
    with pytest.raises(CorruptFileError, match=message):
        load_inference_model(export)


def test_manifest_of_an_export_nested_too_deep_is_refused(export: Path) -> None:
    (export / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CorruptFileError, match="is not JSON"):
        load_inference_model(export)


def test_a_chained_url_leads_to_folders_of_its_own_chain() -> None:
    folder = open_folder("simplecache::memory://bucket/run")
    assert folder.sub("simplecache::memory://bucket/run/step-1").root.endswith("step-1")
    with pytest.raises(ConfigError, match="expected a path"):
        folder.sub("s3://bucket/run::http://127.0.0.1/step-1")
