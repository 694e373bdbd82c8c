"""Modified exports are refused, with the file and what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError, SparseFleetError
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import load_inference_model, verify_export
from sparsefleet.serving.export.export_directory import sha256_of

Change = Callable[[Path, dict[str, Any]], None]


def file_of(part: str, content: dict[str, Any]) -> str:
    """Return the name of a file of the export by its role."""
    if part in ("graph", "parameters"):
        return content[part]
    if part == "golden":
        return content["golden"]["file"]
    if part == "rows":
        return content["tables"][0]["file"]
    return next(step["file"] for step in content["onnx"]["steps"] if step["file"])


def missing(part: str) -> Change:
    return lambda directory, content: (directory / file_of(part, content)).unlink()


def truncated(part: str) -> Change:
    def change(directory: Path, content: dict[str, Any]) -> None:
        path = directory / file_of(part, content)
        path.write_bytes(path.read_bytes()[:-5])

    return change


def flipped(part: str) -> Change:
    def change(directory: Path, content: dict[str, Any]) -> None:
        path = directory / file_of(part, content)
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)

    return change


def replaced(part: str, raw: bytes) -> Change:
    """Return a change that replaces the content of a file, with matching size and checksum."""

    def change(directory: Path, content: dict[str, Any]) -> None:
        path = directory / file_of(part, content)
        path.write_bytes(raw)
        for entry in content["files"]:
            if entry["name"] == path.name:
                entry |= {"bytes": len(raw), "sha256": sha256_of(path)}
        (directory / "manifest.json").write_text(json.dumps(content), encoding="utf-8")

    return change


def manifest(edit: Callable[[dict[str, Any]], Any]) -> Change:
    def change(directory: Path, content: dict[str, Any]) -> None:
        edit(content)
        (directory / "manifest.json").write_text(json.dumps(content), encoding="utf-8")

    return change


def manifest_is(raw: bytes) -> Change:
    return lambda directory, _: (directory / "manifest.json").write_bytes(raw) and None


PARTS = ["graph", "parameters", "golden", "rows", "onnx"]
DAMAGED: dict[str, tuple[Change, type[SparseFleetError], str]] = {
    **{f"{x} missing": (missing(x), CorruptFileError, "is missing, expected") for x in PARTS},
    **{f"{x} truncated": (truncated(x), CorruptFileError, "bytes, expected") for x in PARTS},
    **{f"{x} flipped": (flipped(x), CorruptFileError, "SHA-256 is .*, expected") for x in PARTS},
    "rows empty": (replaced("rows", b""), CorruptFileError, "is not a row file"),
    "rows noise": (replaced("rows", b"\0" * 4000), CorruptFileError, "is not a row file"),
    "onnx noise": (replaced("onnx", b"noise"), CorruptFileError, "is not an ONNX model: "),
    "no manifest": (
        lambda directory, _: (directory / "manifest.json").unlink(),
        CheckpointError,
        "contains no exported model",
    ),
    "manifest empty": (manifest_is(b""), CorruptFileError, "is not JSON"),
    "manifest cut": (manifest_is(b'{"kind": "spar'), CorruptFileError, "is not JSON"),
    "manifest binary": (manifest_is(b"\xff\xfe\x00"), CorruptFileError, "is not text"),
    "manifest a list": (manifest_is(b"[]"), CheckpointError, "not the manifest of an exported"),
    "of something else": (
        manifest(lambda m: m.update(kind="checkpoint")),
        CheckpointError,
        "not the manifest of an exported model",
    ),
    "newer version": (
        manifest(lambda m: m.update(version=2)),
        CheckpointError,
        "has format version 2, but this version of sparsefleet reads 1",
    ),
    "field missing": (
        manifest(lambda m: m.pop("tables")),
        CorruptFileError,
        r"manifest has missing fields \['tables'\]",
    ),
    "field too many": (
        manifest(lambda m: m["golden"].update(price=3)),
        CorruptFileError,
        r"manifest.golden .* unknown fields \['price'\]",
    ),
    "field of another kind": (
        manifest(lambda m: m["tables"][0].update(rows="many")),
        CorruptFileError,
        r"manifest.tables\[0\].rows must be int, got 'many'",
    ),
    "unknown format of rows": (
        manifest(lambda m: m["tables"][0].update(format="int4")),
        CorruptFileError,
        "format must be 'float32' or 'float16' or 'int8', got 'int4'",
    ),
    "file elsewhere": (
        manifest(lambda m: m.update(graph="../graph.pt2")),
        CorruptFileError,
        "'../graph.pt2' is not the name of a file next to the manifest",
    ),
    "file not listed": (
        manifest(lambda m: m["files"].pop()),
        CorruptFileError,
        "lists no size or checksum for",
    ),
    "table of a lookup missing": (
        manifest(lambda m: m["tables"].pop()),
        CorruptFileError,
        "has no rows for table 'shops/all'",
    ),
    "rows of another width": (
        manifest(lambda m: m["tables"][0].update(dim=7)),
        CorruptFileError,
        r"rows of .*\[4\].*expected",
    ),
    "another number of rows": (
        manifest(lambda m: m["tables"][0].update(rows=1)),
        CorruptFileError,
        "expected 1 rows",
    ),
}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_shop()[0], tmp_path / "export"))


def content_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_export_is_refused_by_name_and_cause(damage: str, copied: Path) -> None:
    change, kind, message = DAMAGED[damage]
    change(copied, content_of(copied))
    with pytest.raises(kind, match=message) as caught:
        Predictor(copied, engine="onnx", verify="deep")
    assert str(copied) in str(caught.value)


@pytest.mark.parametrize("part", PARTS)
def test_quick_check_finds_changed_files_too_but_leaves_rows_unread(
    part: str, copied: Path
) -> None:
    flipped(part)(copied, content_of(copied))
    if part == "rows":
        Predictor(copied, engine="onnx")
        with pytest.raises(CorruptFileError, match="SHA-256"):
            verify_export(copied)
    else:
        with pytest.raises(CorruptFileError, match="SHA-256"):
            Predictor(copied, engine="onnx")


@pytest.mark.parametrize(
    ("part", "engine"), [("rows", "onnx"), ("onnx", "onnx"), ("graph", "torch")]
)
def test_file_missing_is_reported_as_such_without_verification(
    part: str, engine: Any, copied: Path
) -> None:
    name = file_of(part, content_of(copied))
    missing(part)(copied, content_of(copied))
    with pytest.raises(CorruptFileError, match=f"is missing: .*{name}"):
        Predictor(copied, engine=engine, verify=False)


def test_directory_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere contains no exported model"):
        Predictor(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="contains no exported model"):
        load_inference_model(tmp_path)


def test_export_without_onnx_says_why_there_is_none(copied: Path) -> None:
    manifest(lambda m: m.update(onnx={"steps": [], "missing": "an operator is not known"}))(
        copied, content_of(copied)
    )
    with pytest.raises(ConfigError, match="has no ONNX files: an operator is not known"):
        Predictor(copied, engine="onnx")
