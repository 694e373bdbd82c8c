"""The manifest of an exported model, with its files, schema and tables.

Format: docs/exporting.md. Reading is strict: a missing field or a field of the wrong type is an
error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sparsefleet.errors import CheckpointError, CorruptFileError
from sparsefleet.serving.export.quantization import RowFormat
from sparsefleet.serving.export.schema import Schema
from sparsefleet.store import RowDtype

__all__ = [
    "ExportManifest",
    "ExportedFile",
    "ExportedTable",
    "GoldenEntry",
    "InitialValues",
    "MANIFEST",
    "OnnxEntry",
    "OnnxStep",
]

MANIFEST = "manifest.json"
_KIND = "sparsefleet inference model"
_VERSION = 1

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """A file in the export, with its size and checksum when it was written."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialValues:
    """The source of initial row values: the native initializer and the table's seed."""

    kind: Literal["constant", "uniform", "normal", "truncated_normal"]
    a: float
    b: float
    seed: int
    row_dtype: RowDtype = field(default="float32", metadata={"optional": True})
    """The format that the table stored its rows in; initial values are rounded to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedTable:
    """The rows of one table, as stored in the export."""

    name: str
    dim: int
    rows: int
    format: RowFormat
    file: str
    initial: InitialValues
    largest_error: float
    """Largest error of a value caused by the row format; 0 for float32."""
    mean_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenEntry:
    """The manifest entry for golden examples, stored with the trained model's predictions."""

    file: str
    examples: int
    largest_error: float
    """Largest difference between the trained model and this export when it was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxStep:
    """One step of an ONNX prediction: run `file`, or look up rows in `table`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    file: str | None = None
    table: str | None = None
    padding_id: int | None = None
    unknown: Literal["zeros", "initial"] = "zeros"


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxEntry:
    """The ONNX steps in order, or the reason why there are none."""

    steps: tuple[OnnxStep, ...]
    missing: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportManifest:
    """The description of an exported model, returned by `save_inference_model`."""

    created: str
    """Creation time in UTC, ISO 8601."""
    made_by: dict[str, str]
    """Versions of sparsefleet and torch."""
    schema: Schema
    tables: tuple[ExportedTable, ...]
    graph: str
    parameters: str
    golden: GoldenEntry
    onnx: OnnxEntry
    files: tuple[ExportedFile, ...]

    @property
    def digest(self) -> str:
        """Return an identifier of this export: 16 hexadecimal digits.

        The identifier is computed from the whole manifest, including the checksums of all files.
        """
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def table(self, name: str) -> ExportedTable:
        """Return the entry for a table."""
        return next(entry for entry in self.tables if entry.name == name)

    def to_json(self) -> str:
        content = asdict(self)
        if not self.schema.hashed:  # so that exports without it keep their digest
            del content["schema"]["hashed"]
        if not self.schema.filled:
            del content["schema"]["filled"]
        for table in content["tables"]:
            if table["initial"]["row_dtype"] == "float32":
                del table["initial"]["row_dtype"]
        return json.dumps({"kind": _KIND, "version": _VERSION, **content}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> ExportManifest:
        """Parse a manifest.

        Raises CorruptFileError, which names `where` and the field, or CheckpointError if the
        manifest is of a different kind or version.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{where} is not JSON: {error}") from error
        if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
            hint = ""
            if isinstance(content, dict) and "format_version" in content:
                hint = "; it describes a checkpoint: export the model with Trainer.export"
            raise CheckpointError(f"{where} is not the manifest of an exported model{hint}")
        version = content.pop("version", None)
        if version != _VERSION:
            raise CheckpointError(
                f"{where} has format version {version!r}, but this version of sparsefleet reads "
                f"{_VERSION}; use the version that wrote it, or export again"
            )
        manifest = _read_dataclass(cls, content, where, "manifest")
        manifest._check_names(where)
        return manifest

    def _check_names(self, where: str) -> None:
        """Check that all files are next to the manifest and that every file in use is listed."""
        listed = {entry.name for entry in self.files}
        used = {self.graph, self.parameters, self.golden.file}
        used |= {entry.file for entry in self.tables}
        used |= {step.file for step in self.onnx.steps if step.file is not None}
        for name in listed | used:
            if not name or name.startswith(".") or "/" in name or "\\" in name:
                raise CorruptFileError(
                    f"{where}: {name!r} is not the name of a file next to the manifest"
                )
        if used - listed:
            missing = ", ".join(sorted(used - listed))
            raise CorruptFileError(f"{where} lists no size and checksum for {missing}")
        tables = {entry.name for entry in self.tables}
        for lookup in self.schema.lookups:
            if lookup.table not in tables:
                raise CorruptFileError(f"{where} has no rows for table '{lookup.table}'")


def _read(kind: Any, value: Any, where: str, path: str) -> Any:
    """Convert the JSON value `value` to the type `kind`."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_dataclass(kind, value, where, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_union(arguments, value, where, path)
    if origin is tuple:
        _require(isinstance(value, list), "a list", value, where, path)
        kind = arguments[0]
        return tuple(_read(kind, item, where, f"{path}[{at}]") for at, item in enumerate(value))
    if origin is dict:
        _require(isinstance(value, Mapping), "an object", value, where, path)
        return {name: _read(arguments[1], item, where, path) for name, item in value.items()}
    if origin is Literal:
        _require(value in arguments, " or ".join(map(repr, arguments)), value, where, path)
        return value
    if kind is float and type(value) is int:
        _require(-(2**63) <= value < 2**64, "a number", value, where, path)
        return float(value)
    _require(type(value) is kind, kind.__name__, value, where, path)
    if kind is int:
        # Only ids and seeds may be negative or large; all others are sizes and row counts.
        _require(-(2**63) <= value < 2**64, "a 64-bit int", value, where, path)
    return value


def _read_dataclass(kind: type[Item], value: Any, where: str, path: str) -> Item:
    _require(isinstance(value, Mapping), "an object", value, where, path)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    optional = {field.name for field in fields(kind) if field.metadata.get("optional")}  # type: ignore[arg-type]
    if value.keys() | optional != names:
        missing, more = sorted(names - value.keys()), sorted(value.keys() - names)
        raise CorruptFileError(
            f"{where}: {path} has missing fields {missing} and unknown fields {more}"
        )
    hints = get_type_hints(kind)
    read = {name: _read(hints[name], value[name], where, f"{path}.{name}") for name in value}
    return kind(**read)


def _read_union(kinds: tuple[Any, ...], value: Any, where: str, path: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    for kind in others[:-1]:
        if type(value) is kind:
            return value
    return _read(others[-1], value, where, path)


def _require(holds: bool, wanted: str, found: Any, where: str, path: str) -> None:
    if not holds:
        raise CorruptFileError(f"{where}: {path} must be {wanted}, got {found!r:.80}")
