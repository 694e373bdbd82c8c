"""Ways to change a copy of an export, with checksums as if it had been written that way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.export.export_directory import sha256_of
from sparsefleet.serving.export.manifest import ExportedTable
from sparsefleet.serving.export.quantization import decode_rows, encode_rows
from sparsefleet.serving.export.row_file import RowFile, row_schema

Rows = tuple[np.ndarray, np.ndarray]


def copy_of(export: Path, folder: Path) -> Path:
    """A copy that may be changed."""
    target = folder / f"copy-of-{export.name}"
    shutil.copytree(export, target)
    return target


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = directory / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def seal(directory: Path, name: str) -> None:
    """Update the manifest with the file's new size and checksum."""

    def edit(content: dict[str, Any]) -> None:
        entry = next(entry for entry in content["files"] if entry["name"] == name)
        path = directory / name
        entry |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}

    edit_manifest(directory, edit)


def change_rows(
    directory: Path, table: str, change: Callable[[np.ndarray, np.ndarray], Rows], **entry: Any
) -> None:
    """Replace rows of a table, and `entry`: fields of its manifest entry."""
    old = read_manifest(directory).table(table)
    keys, values = change(*rows_of(directory, table))
    order = np.argsort(keys)
    new = replace(old, rows=len(keys), dim=values.shape[1], **entry)
    _write(directory / old.file, keys[order], values[order], new)

    def edit(content: dict[str, Any]) -> None:
        written = next(item for item in content["tables"] if item["name"] == table)
        written |= {"rows": new.rows, "dim": new.dim, "format": new.format}

    edit_manifest(directory, edit)
    seal(directory, old.file)


def rows_of(directory: Path, table: str) -> Rows:
    """Return ascending keys, and values as they are read."""
    entry = read_manifest(directory).table(table)
    file = RowFile(directory / entry.file, entry)
    return file.keys.copy(), decode_rows(file.rows).copy()


def _write(path: Path, keys: np.ndarray, values: np.ndarray, entry: ExportedTable) -> None:
    schema = row_schema(entry.name, entry.dim, entry.format)
    rows = encode_rows(entry.name, keys, np.ascontiguousarray(values, np.float32), entry.format)
    flat = pa.array(np.ascontiguousarray(rows.values).reshape(-1))
    columns = [
        pa.array(keys),
        pa.FixedSizeListArray.from_arrays(flat, type=schema.field("values").type),
    ]
    columns += [] if rows.scales is None else [pa.array(rows.scales)]
    path.unlink()  # it may be mapped
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def take_file(directory: Path, part: str, source: Path) -> None:
    """Replace a file with that of another export."""
    name, other = (_file(where, part) for where in (directory, source))
    shutil.copyfile(source / other, directory / name)
    seal(directory, name)


def _file(directory: Path, part: str) -> str:
    manifest = read_manifest(directory)
    if part == "onnx":
        return next(step.file for step in manifest.onnx.steps if step.file is not None)
    return str(getattr(manifest, part))


def flip_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
