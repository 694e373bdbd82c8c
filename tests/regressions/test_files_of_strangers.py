"""Checkpoints and exports from strangers: bounded memory, no other services, no endless reads.

Found by attacking: a row file of 44 KB that became 1.2 GB, a checkpoint whose base was a URL of any
fsspec driver, links to devices and pipes in place of files, and numbers and nesting that ended in
errors of Python instead of a refusal.
"""

from __future__ import annotations

import gzip
import hashlib
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
import safetensors.numpy
from tests.support.arrow_bombs import compressed_as_by_0_17
from tests.support.checkpoints import save, two_tables
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import checksum_text, open_folder
from sparsefleet.checkpoint.json_fields import canonical
from sparsefleet.embed.corpus import open_corpus
from sparsefleet.errors import (
    CheckpointError,
    ConfigError,
    CorruptFileError,
    InputFileError,
    ProtocolError,
)
from sparsefleet.fluid.framework import Program, ProgramError
from sparsefleet.fluid.framework.framework_pb2 import ProgramDesc
from sparsefleet.fluid.io.inference_model import read_program
from sparsefleet.serving.export import load_inference_model
from sparsefleet.serving.export.export_directory import sha256_of
from sparsefleet.serving.http.catalogue import open_catalogue
from sparsefleet.serving.updates.update import Update, UpdateName
from sparsefleet.serving.verify.service_side import ServiceClient
from sparsefleet.serving.verify.verification import _is_export
from sparsefleet.zoo.recipes import recipe
from sparsefleet.zoo.recipes.recipe import DataFile


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
        with pytest.raises(ConfigError, match="expected a path, a local file URL, or the URL"):
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


@pytest.mark.parametrize("compression", ["zstd", "lz4", "as in 0.17"])
def test_compressed_rows_of_an_export_are_refused(export: Path, compression: str) -> None:
    content = json.loads((export / "manifest.json").read_text())
    table = content["tables"][0]
    path = export / table["file"]
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    if compression == "as in 0.17":
        path.write_bytes(compressed_as_by_0_17(batch, pa.ipc.new_file))
    else:
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


DEEP = "[" * 100_000


def test_updates_programs_and_answers_nested_too_deep_are_refused(
    tmp_path: Path, export: Path
) -> None:
    raw = safetensors.numpy.save({"x": np.zeros(1)}, {"update": DEEP})
    name = UpdateName("delta", 1, "0" * 16, hashlib.sha256(raw).hexdigest()[:16])
    with pytest.raises(CorruptFileError, match="is not an update"):
        Update.from_bytes(name, raw, "here")
    document = '{"program": ' + DEEP
    (tmp_path / "__model__").write_text(document)
    with pytest.raises(ProgramError, match="__model__ is not a program"):
        read_program(tmp_path / "__model__")
    with pytest.raises(ProgramError, match="not a program"):
        Program.from_json(document)
    with pytest.raises(ProgramError, match="not a program"):
        ProgramDesc.FromString(document.encode())
    with pytest.raises(ProtocolError, match="did not return JSON"):
        ServiceClient("http://127.0.0.1:1")._object("/v1/model", DEEP.encode())
    versions = tmp_path / "versions"
    shutil.copytree(export, versions / "first")
    (versions / "active.json").write_text(DEEP)
    with pytest.raises(CorruptFileError, match="does not say which version is active"):
        open_catalogue(versions).chosen()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("random_seed"),
        lambda document: document.update(random_seed={}),
        lambda document: document["blocks"][0]["ops"][0].update(inputs=5),
    ],
)
def test_damaged_programs_are_refused(change: Callable[[dict[str, Any]], object]) -> None:
    program = Program()
    program.global_block().create_var("x", dtype="float32", shape=[1])
    program.global_block().append_op("scale", {"X": "x"}, {"Out": "x"}, {"scale": 2.0})
    document = json.loads(program.to_json())
    change(document)
    with pytest.raises(ProgramError, match="the program is corrupt"):
        Program.from_document(document)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe])
def test_side_of_a_verification_with_a_device_as_its_manifest_is_no_export(
    export: Path, replace: Callable[[Path], None]
) -> None:
    assert _is_export(export)
    replace(export / "manifest.json")
    assert not _is_export(export)
    (export / "manifest.json").unlink()
    (export / "manifest.json").write_text(DEEP)
    assert not _is_export(export)


def test_packed_data_of_a_recipe_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    file = DataFile(path="data.csv", source="nowhere", md5=None)
    assert len(file.read(tmp_path)) == 1 << 20
    monkeypatch.setattr(recipe, "_MAX_UNPACKED_BYTES", (1 << 20) - 1)
    with pytest.raises(InputFileError, match="unpacks to more than 1,048,575 bytes"):
        file.read(tmp_path)


def test_damaged_corpus_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    raw = bytearray(gzip.compress(b"to be or not to be\n" * 100))
    raw[10] = 0x07  # no kind of block
    path.write_bytes(raw)
    with pytest.raises(InputFileError, match=r"cannot read .*text\.gz"):
        list(open_corpus(path).blocks())


def test_a_chained_url_leads_to_folders_of_its_own_chain() -> None:
    folder = open_folder("simplecache::memory://bucket/run")
    assert folder.sub("simplecache::memory://bucket/run/step-1").root.endswith("step-1")
    with pytest.raises(ConfigError, match="expected a path"):
        folder.sub("s3://bucket/run::http://127.0.0.1/step-1")
