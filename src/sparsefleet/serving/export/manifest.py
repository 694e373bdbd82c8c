"""The manifest of an exported model: its files and tables, and its inputs, lookups and outputs.

A dimension is an int or a name: "batch" is the number of examples; any other name is a separate
size.

Format: docs/exporting.md. Reading is strict: a missing field or a field of the wrong type is an
error.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sparsefleet.checkpoint.manifest import EXPORT_KIND
from sparsefleet.data import hash64
from sparsefleet.errors import CheckpointError, CorruptFileError
from sparsefleet.serving.export.quantization import RowFormat
from sparsefleet.store import RowDtype

__all__ = [
    "ExportManifest",
    "ExportedFile",
    "ExportedTable",
    "GoldenEntry",
    "HashedInput",
    "InitialValues",
    "InputSchema",
    "LookupSchema",
    "MANIFEST",
    "MissingInput",
    "OnnxEntry",
    "OnnxStep",
    "Schema",
    "TargetSchema",
]

Shape = tuple[int | str, ...]


def describe(dtype: str, shape: Shape) -> str:
    """Return a readable form of a dtype and shape.

    >>> describe("int64", ("batch", 26))
    'int64[batch, 26]'
    """
    return f"{dtype}[{', '.join(map(str, shape))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSchema:
    """One input; a ragged input is a pair (values, offsets).

    >>> print(InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",)))
    tags: int64[tags], offsets int64[batch]
    """

    name: str
    """The name of a parameter of `forward`, or a key in its dict; dots separate nested names."""

    dtype: str
    """NumPy name of the dtype."""

    shape: Shape
    """Shape of the array, or of the values if ragged."""

    offsets: Shape | None = None
    """Shape of the int64 offsets of a ragged input; None if the input is not ragged."""

    @property
    def is_ragged(self) -> bool:
        return self.offsets is not None

    @property
    def is_closed(self) -> bool:
        """Return whether offsets have an extra last entry, the number of values."""
        return self.offsets == ("batch + 1",)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Return the graph names of the input's arrays: one name, or two for values and offsets."""
        return (f"{self.name}.values", f"{self.name}.offsets") if self.is_ragged else (self.name,)

    def __str__(self) -> str:
        values = f"{self.name}: {describe(self.dtype, self.shape)}"
        if self.offsets is None:
            return values
        return f"{values}, offsets {describe('int64', self.offsets)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSchema:
    """One output of an exported model."""

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.dtype, self.shape)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupSchema:
    """A lookup of ids in a table."""

    table: str
    ids: str | None
    """The input array that holds the ids, or None if the model computes the ids from its inputs."""

    padding_id: int | None
    """The padding id, which has no row and yields zeros."""

    unknown: Literal["zeros", "initial"]
    """The result for an id without a row: zeros or its initial row."""


@functools.lru_cache(maxsize=256)
def _positions(vocabulary: tuple[str, ...]) -> dict[str, int]:
    return {text: place for place, text in enumerate(vocabulary, 1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class HashedInput:
    """How the strings of an input become ids; the reader in training used the same hash."""

    input: str
    """The name of the input."""

    seed: int
    """The hash seed: a string's id is `data.hash64(string, seed)`."""

    seed_per_column: bool
    """Whether value i of an example is hashed with `seed + i`; true if the reader reads several
    columns.
    """

    missing: int | None
    """The id that stands for a missing value. If None, a missing value is an error."""

    separator: str
    """The separator between several values in one CSV cell; "" means spaces."""

    vocabulary: tuple[str, ...] = field(default=(), metadata={"optional": True})
    """All known strings. The string at index i has the id i + 1, and any other string has the id 0.
    If empty, all strings are hashed.
    """

    def id_of(self, text: str, place: int) -> int:
        """Return the id, 0..2^64 - 1, of a string that is value number `place` of its example."""
        if self.vocabulary:
            return _positions(self.vocabulary).get(text, 0)
        return hash64(text, (self.seed + place) % 2**64 if self.seed_per_column else self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingInput:
    """The reader's replacement for missing values of an input that takes only numbers."""

    input: str
    """The name of the input."""

    value: int | float
    """The replacement: an id, or a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """A model's inputs, in the order of positional arguments, and its targets and lookups."""

    inputs: tuple[InputSchema, ...]
    targets: tuple[TargetSchema, ...]
    lookups: tuple[LookupSchema, ...]
    hashed: tuple[HashedInput, ...] = field(default=(), metadata={"optional": True})
    """Inputs that also accept strings."""

    filled: tuple[MissingInput, ...] = field(default=(), metadata={"optional": True})
    """Numeric inputs that may have missing values."""

    def hashing(self, name: str) -> HashedInput | None:
        """Return how an input's strings are hashed, or None if the input takes only numbers."""
        return next((item for item in self.hashed if item.input == name), None)

    def filling(self, name: str) -> int | float | None:
        """Return the replacement for an input's missing numbers.

        None means that no number may be missing.
        """
        return next((item.value for item in self.filled if item.input == name), None)

    def takes_null(self, name: str) -> bool:
        """Return whether a value of this input may be missing."""
        hashed = self.hashing(name)
        return self.filling(name) is not None or (hashed is not None and hashed.missing is not None)

    @property
    def places(self) -> tuple[str, ...]:
        """Return the names of the positional inputs.

        Nested inputs such as "user.id" and "user.age" count as one input, "user".
        """
        return tuple(dict.fromkeys(item.name.split(".")[0] for item in self.inputs))


MANIFEST = "manifest.json"
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
        return json.dumps({"kind": EXPORT_KIND, "version": _VERSION, **content}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> ExportManifest:
        """Parse a manifest.

        Raises a CorruptFileError that names `where` and the field, or CheckpointError if the
        manifest is of a different kind or version.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{where} is not JSON: {error}") from error
        if not isinstance(content, dict) or content.pop("kind", None) != EXPORT_KIND:
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
            raise CorruptFileError(f"{where} lists no size or checksum for {missing}")
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
