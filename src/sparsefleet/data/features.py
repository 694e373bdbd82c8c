"""Describes a model's inputs once, for reading, training, export and checking a service's inputs.

In shapes, B is the number of examples, W the number of columns of a feature, and N the number of
values of all examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from sparsefleet import _core
from sparsefleet.data.arrow_format import ArrowIpc, ArrowStream, Parquet, is_arrow_dataset
from sparsefleet.data.column_advice import FILL_ADVICE
from sparsefleet.data.field import ColumnName, Field
from sparsefleet.data.formats import Csv
from sparsefleet.data.memory_data import MemoryData
from sparsefleet.data.reader import Reader
from sparsefleet.data.records import MismatchError, RecordPacker, Records, require_offsets
from sparsefleet.errors import ConfigError, DataError

__all__ = ["Categorical", "Feature", "Features", "Label", "MultiValued", "Numeric", "Sequence"]

_MAX_DIM = _core.MAX_DIM
_CHUNK = 8192  # examples that columns in memory hand over at once
Kind = TypeVar("Kind", bound="Feature")


@dataclass(frozen=True, slots=True)
class Feature:
    """One input of a model. Base class of all kinds of features."""

    name: str
    """The name of the input, and of its column unless `columns` says otherwise."""

    @property
    def field(self) -> Field:
        """Return the field that reads this feature from a file with columns."""
        raise NotImplementedError(f"{type(self).__name__} is not a kind of feature")

    def _require(self, holds: bool, wanted: str, found: object) -> None:
        if not holds:
            raise ConfigError(f"feature '{self.name}': {wanted}, got {found!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Numeric(Feature):
    """Numbers, one per column: float32[B], or float32[B, W] from W columns.

    The model computes ``(transform(x) - mean) / std``, so an exported model accepts the numbers as
    they are in the file.

    >>> Numeric("price", transform="log", missing=0.0).width
    1
    >>> Numeric("counts", columns=("I1", "I2")).field.shape
    (2,)
    """

    columns: ColumnName | tuple[ColumnName, ...] | None = None
    """The columns of the file; None means the column with the feature's name."""

    missing: float | None = None
    """The value that replaces a missing number. If None, a missing number is an error."""

    transform: Literal["none", "log"] = "none"
    """"log": sign(x) log(1 + |x|), for counts and prices."""

    mean: float = 0.0
    std: float = 1.0
    """`mean` is subtracted from the transformed number, and the difference is divided by `std`."""

    def __post_init__(self) -> None:
        self._require(
            self.transform in ("none", "log"), "transform: 'none' or 'log'", self.transform
        )
        self._require(self.std > 0, "std must be a number > 0", self.std)
        self.field  # noqa: B018  checks name, columns and missing

    @property
    def width(self) -> int:
        """Return the number of columns, W."""
        return len(self.columns) if isinstance(self.columns, tuple) else 1

    @property
    def field(self) -> Field:
        shape = (self.width,) if isinstance(self.columns, tuple) else ()
        return Field(self.name, "float", shape, columns=self.columns, missing=self.missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class IdFeature(Feature):
    """Ids to look up in a table. Base class of features with one id or several ids per example."""

    table: str = ""
    """The table that holds the rows; features may share one. "" means the feature's name."""

    dim: int = 8
    """The width of a row; features that share a table must have the same width."""

    columns: ColumnName | tuple[ColumnName, ...] | None = None
    """The column of the file; None means the column with the feature's name."""

    hash_seed: int | None = None
    """Hash strings to ids with this seed; features that share a table but not their strings need
    different seeds. If None, ids are numbers, or positions in the `vocabulary`.
    """

    vocabulary: tuple[str, ...] | None = None
    """All known strings. String i, counted from 0, gets the id i + 1; any other string gets 0."""

    missing: int | None = None
    """The id for a missing value. If None, a missing value is an error in a column of numbers, an
    ordinary string if hashed, and 0 with a vocabulary.
    """

    def __post_init__(self) -> None:
        holds = isinstance(self.dim, int) and 1 <= self.dim <= _MAX_DIM
        self._require(holds, f"dim must be an int in 1..{_MAX_DIM}", self.dim)
        self._require(isinstance(self.table, str), "table must be a name", self.table)
        self.field  # noqa: B018  checks the rest

    @property
    def table_name(self) -> str:
        """Return the name of the table."""
        return self.table or self.name

    @property
    def _seed(self) -> int | None:
        return 0 if self.hash_seed is None and self.vocabulary is not None else self.hash_seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Categorical(IdFeature):
    """One id per example, int64[B], or one id from each of W columns, int64[B, W].

    >>> city = Categorical("city", hash_seed=3, dim=16)
    >>> city.field.hash_seed, city.table_name
    (3, 'city')
    >>> Categorical("sex", vocabulary=("Female", "Male")).field.vocabulary
    ('Female', 'Male')
    """

    @property
    def width(self) -> int:
        """Return the number of columns, W."""
        return len(self.columns) if isinstance(self.columns, tuple) else 1

    @property
    def field(self) -> Field:
        shape = (self.width,) if isinstance(self.columns, tuple) else ()
        return Field(
            self.name,
            "uint64",
            shape,
            columns=self.columns,
            missing=self.missing,
            hash_seed=self._seed,
            vocabulary=self.vocabulary,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ManyIds(IdFeature):
    separator: str = ""
    """For CSV, the separator between values in a field, such as "|"; Parquet's list columns need
    none.
    """

    max_length: int = 100
    """Maximum number of ids used per example; the last ones are kept."""

    @property
    def field(self) -> Field:
        return Field(
            self.name,
            "uint64",
            columns=self.columns,
            missing=self.missing,
            hash_seed=self._seed,
            vocabulary=self.vocabulary,
            separator=self.separator,
            max_values=self.max_length,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiValued(_ManyIds):
    """Any number of unordered ids, such as tags; the model pools their rows into one.

    A column is a pair (values int64[N], offsets int64[B]).

    >>> MultiValued("genres", separator="|", hash_seed=1).field.max_values
    100
    """

    pooling: Literal["mean", "sum", "sqrtn"] = "mean"
    """How the rows are pooled; an example without ids gets zeros."""

    def __post_init__(self) -> None:
        IdFeature.__post_init__(self)
        holds = self.pooling in ("mean", "sum", "sqrtn")
        self._require(holds, "pooling must be 'mean', 'sum' or 'sqrtn'", self.pooling)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence(_ManyIds):
    """Ids in order, oldest first, such as items seen by a user; used by sequence models.

    A column is a pair (values int64[N], offsets int64[B]).

    >>> Sequence("seen", table="movies", separator=" ", max_length=50).table_name
    'movies'
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Label(Feature):
    """The target that the model learns to predict: float32[B], or float32[B, W] from W columns.

    >>> Label("income", positive=">50K").field.vocabulary
    ('>50K',)
    """

    columns: ColumnName | tuple[ColumnName, ...] | None = None
    """The columns of the file, one per task; None means the column with the label's name."""

    positive: str | None = None
    """The string that maps to 1.0; all others map to 0.0. If None, the column holds numbers."""

    def __post_init__(self) -> None:
        self.field  # noqa: B018  checks the settings

    @property
    def field(self) -> Field:
        several = isinstance(self.columns, tuple)
        shape = (len(self.columns),) if isinstance(self.columns, tuple) else ()
        if self.positive is None:
            return Field(self.name, "float", shape, columns=self.columns)
        self._require(not several, "positive requires one column", self.columns)
        known = (self.positive,)
        return Field(self.name, "uint64", (), columns=self.columns, hash_seed=0, vocabulary=known)


class Features:
    """All inputs of a model, and its label.

    Pass it to the reader, to a model from `sparsefleet.zoo` and to `Trainer.export`; see
    docs/features.md.

    >>> features = Features(
    ...     Numeric("age", mean=40.0, std=15.0),
    ...     Categorical("city", hash_seed=1),
    ...     MultiValued("tags", separator="|", hash_seed=2),
    ...     label="click",
    ... )
    >>> [field.name for field in features.fields]
    ['age', 'city', 'tags', 'click']
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "day.csv"
    >>> size = path.write_text("city,age,tags,click\\nUlm,31,a|b,1\\nBonn,50,,0\\n")
    >>> inputs, clicks = next(iter(features.reader(path, features.csv(), batch_size=2)))
    >>> inputs["age"].tolist(), inputs["tags"][1].tolist(), clicks.tolist()
    ([31.0, 50.0], [0, 2], [1.0, 0.0])
    """

    def __init__(self, *features: Feature, label: str | Label | None = None) -> None:
        self.label = Label(label) if isinstance(label, str) else label
        """The label; None for data without one."""
        self._features = {one.name: one for one in map(_checked, features)}
        names = [feature.name for feature in features]
        names += [] if self.label is None else [self.label.name]
        if not features:
            raise ConfigError("Features needs at least one feature, got none")
        for at, name in enumerate(names):
            if name in names[:at]:
                raise ConfigError(f"Features: two inputs are named '{name}'; rename one")
        self._check_tables()

    def __getitem__(self, name: str) -> Feature:
        if name not in self._features:
            raise ConfigError(
                f"no feature is named {name!r}; the names are {', '.join(self._features)}"
            )
        return self._features[name]

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        return f"Features({', '.join(map(repr, self))}, label={self.label!r})"

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the features of the given class, in order."""
        return [feature for feature in self if isinstance(feature, kind)]

    def only(self, *names: str) -> Features:
        """Return a description with only these features, in this order, and the same label."""
        return Features(*(self[name] for name in names), label=self.label)

    def without(self, *names: str) -> Features:
        """Return a description without these features."""
        for name in names:
            self[name]  # raises for an unknown name
        return self.only(*(name for name in self._features if name not in names))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of all features and of the label, for any format with columns."""
        label = () if self.label is None else (self.label.field,)
        return (*(feature.field for feature in self), *label)

    @property
    def _list_fields(self) -> tuple[Field, ...]:
        """Return the fields for formats with list columns, which need no separators."""
        return tuple(replace(field, separator="") for field in self.fields)

    # -- formats and readers --------------------------------------------------------------------

    def csv(self, **settings: Any) -> Csv:
        """Return the format of CSV or TSV files; the settings are the same as for `Csv`."""
        return Csv(*self.fields, **settings)

    def parquet(self) -> Parquet:
        """Return the format of Parquet files."""
        return Parquet(*self._list_fields)

    def arrow(self) -> ArrowIpc:
        """Return the format of Arrow IPC and Feather files."""
        return ArrowIpc(*self._list_fields)

    def arrow_stream(self, source: Any) -> ArrowStream:
        """Return the format of a dataset, or of a function that yields Arrow tables.

        source: as for `ArrowStream`.
        """
        return ArrowStream(source, *self._list_fields)

    def reader(
        self,
        files: Any,
        format: Csv | Parquet | ArrowIpc | ArrowStream | None = None,  # noqa: A002
        *,
        batch_size: int,
        **settings: Any,
    ) -> Reader:
        """Return a reader of files or of a dataset, with labels if there is a label.

        files: paths as for `Reader`, or a Hugging Face or Ray Data dataset, or an Arrow table;
            see `ArrowStream`.
        format: the result of `csv()` or a similar method. None chooses it by the suffix of the
            first file: .csv, .tsv (both also with .gz or .zst), .parquet, .arrow or .feather.
        settings: the settings of `Reader`.
        """
        if format is None and is_arrow_dataset(files):
            files, format = None, self.arrow_stream(files)  # noqa: A001
        chosen = self._format_of(files) if format is None else format
        label = None if self.label is None else self.label.name
        return Reader(files, chosen, batch_size, label=label, **settings)

    def memory(
        self,
        columns: Mapping[str, Any],
        batch_size: int,
        *,
        worker_index: int = 0,
        worker_num: int = 1,
    ) -> MemoryData:
        """Return batches from columns in memory; they can be shuffled, see `MemoryData`.

        columns: for each feature and the label, by name, an array or list with one item per
            example; features with any number of ids also accept (values [N], offsets [B + 1]),
            which any tuple of two is taken for. Columns that no feature uses are ignored. Strings
            become ids, as in a file.
        worker_index, worker_num: this worker gets every `worker_num`th example from `worker_index`
            on, so parts are alike even if the examples are sorted.
        """
        fields = [replace(field, columns=None, separator="") for field in self.fields]
        taken = {field.name: _in_memory(field, columns) for field in fields}
        sizes = {name: len(column) for name, column in taken.items()}
        size = next(iter(sizes.values()))
        for name, found in sizes.items():
            if found != size:
                raise ConfigError(
                    f"column '{name}' has {found} examples, but '{next(iter(sizes))}' has {size}; "
                    "all columns must have the same number of examples"
                )
        if not size:
            raise ConfigError("the columns have no examples, expected at least one")
        if worker_index >= size:
            raise ConfigError(
                f"worker {worker_index} of {worker_num} gets none of the {size} examples; use "
                "fewer workers"
            )

        def part(rows: slice) -> dict[str, Any]:
            return {name: column.part(rows) for name, column in taken.items()}

        def examples() -> Iterator[dict[str, Any]]:
            for at in range(worker_index, size, _CHUNK * worker_num):
                yield part(slice(at, min(at + _CHUNK * worker_num, size), worker_num))

        label = None if self.label is None else self.label.name
        format = Records(examples, *fields, batches=True)  # noqa: A001
        try:
            return MemoryData(Reader(None, format, batch_size, label=label))
        except DataError:
            packer = RecordPacker(fields)
            for row in range(worker_index, size, worker_num):
                try:
                    packer.pack_batch(part(slice(row, row + 1)))
                except MismatchError as error:
                    raise DataError(f"row {row + 1:,}, {error}") from None
            raise

    def _format_of(self, files: Any) -> Csv | Parquet | ArrowIpc:
        if hasattr(files, "columns") and hasattr(files, "__getitem__"):
            raise ConfigError(
                f"Features.reader takes paths or a dataset, got a {type(files).__name__}; pass it "
                "to Features.memory(...)"
            )
        if isinstance(files, Mapping):
            raise ConfigError(
                f"Features.reader takes files or one dataset, got a {type(files).__name__} with "
                f"{', '.join(repr(key) for key in files)[:200] or 'nothing'}; pick one of them"
            )
        is_path = isinstance(files, (str, os.PathLike))
        if not is_path and files is not None and not isinstance(files, Iterable):
            raise ConfigError(
                "Features.reader takes paths, a Hugging Face or Ray Data dataset, or an Arrow "
                f"table, got {files!r:.100}"
            )
        one = files if is_path else next(iter(files if files is not None else ()), None)
        if not isinstance(one, (str, os.PathLike)):
            found = "no files" if one is None else f"a {type(files).__name__} of {one!r:.100}"
            raise ConfigError(
                f"Features.reader takes paths, or a dataset, got {found}; for examples in memory, "
                "pass Features.memory(...) a dict of columns"
            )
        path = os.fspath(one)
        for ending in (".gz", ".zst", ".zstd"):
            path = path.removesuffix(ending)
        if path.endswith(".csv"):
            return self.csv()
        if path.endswith(".tsv"):
            return self.csv(separator="\t")
        if path.endswith(".parquet"):
            return self.parquet()
        if path.endswith((".arrow", ".feather")):
            return self.arrow()
        raise ConfigError(
            f"the suffix of {os.fspath(one)!r} does not identify its format: expected .csv, .tsv, "
            ".parquet, .arrow or .feather; pass the format explicitly, such as features.csv(...)"
        )

    def _check_tables(self) -> None:
        dims: dict[str, IdFeature] = {}
        for feature in self.of(IdFeature):
            first = dims.setdefault(feature.table_name, feature)
            if first.dim != feature.dim:
                raise ConfigError(
                    f"features '{first.name}' and '{feature.name}' share table "
                    f"'{feature.table_name}' but have dim {first.dim} and {feature.dim}; use the "
                    "same dim"
                )


class _MemoryColumn:
    """A column in memory; returns its part of a batch in the form that `Records` accepts."""

    def __init__(self, values: Any, offsets: Any = None) -> None:
        self._values = np.asarray(values)
        self._offsets = None if offsets is None else np.asarray(offsets, np.int64)

    def __len__(self) -> int:
        return len(self._values) if self._offsets is None else len(self._offsets) - 1

    def part(self, rows: slice) -> Any:
        if self._offsets is None:
            return self._values[rows]
        starts = self._offsets[:-1][rows]
        lengths = self._offsets[1:][rows] - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._values[places], offsets


def _in_memory(field: Field, columns: Mapping[str, Any]) -> _MemoryColumn:
    if field.name not in columns:
        raise ConfigError(
            f"no column '{field.name}'; found {', '.join(map(str, columns)) or 'none'}"
        )
    column = columns[field.name]
    is_list = hasattr(column, "__len__") and getattr(column, "ndim", 1) > 0
    if not is_list or isinstance(column, (str, bytes)):
        raise ConfigError(
            f"column '{field.name}': expected an array or list with one item per example, found a "
            f"{type(column).__name__}"
        )
    if field.shape is not None:
        if field.dtype == "float":
            return _MemoryColumn(_numbers(_unmixed(column, "iufb"), field))
        return _MemoryColumn(_filled_ids(_unmixed(column, "iub"), field))
    if isinstance(column, tuple) and len(column) == 2:
        values, offsets = column
        require_offsets(field, np.asarray(offsets), len(values))
        return _MemoryColumn(values, offsets)
    lists: list[Any] = []
    filling = _filling(field)
    for row, one in enumerate(column):
        if filling is not None and _is_missing(one):
            one = [filling]  # as in a file
        if isinstance(one, (str, bytes)) or not hasattr(one, "__len__"):
            raise DataError(
                f"row {row + 1:,}, column '{field.name}': expected a list of ids, "
                f"found {one!r:.100}{FILL_ADVICE if _is_missing(one) else ''}"
            )
        lists.append(one)
    lengths = [len(one) for one in lists]
    values = [value for one in lists for value in one]
    if filling is not None:
        values = [filling if _is_missing(value) else value for value in values]
    fits = all(isinstance(value, (int, np.integer)) and value < 2**63 for value in values)
    kind = np.int64 if fits else object  # objects are checked one by one
    return _MemoryColumn(np.array(values, kind), np.cumsum([0, *lengths]))


def _filling(field: Field) -> int | str | None:
    """Return what replaces a missing value, or None if a missing value is an error.

    With a vocabulary, it is a string that is not in it, since those have the id of missing values.
    """
    return field.missing_id if field.vocabulary is None else "\0"


def _filled_ids(values: Any, field: Field) -> Any:
    """Return a column of ids with its missing values, None and NaN, replaced as in a file.

    An array of whole floats with NaN, which is how pandas stores ids if some are missing, becomes
    an array of ids.
    """
    filling = _filling(field)
    if filling is None or values.dtype.kind not in "Of":
        return values
    if values.dtype.kind == "O" or field.hash_seed is not None:
        flat = [filling if _is_missing(value) else value for value in values.reshape(-1)]
        filled = np.empty(len(flat), object)
        filled[:] = flat
        return filled.reshape(values.shape)
    missing = np.isnan(values)
    known = np.where(missing, 0, values)
    if not missing.any() or (np.abs(known) > 2**53).any() or (known != np.floor(known)).any():
        return values  # the reader reports the problem
    return np.where(missing, np.int64(filling), known.astype(np.int64))


def _is_missing(value: object) -> bool:
    """Return whether the value is None, NaN, or the mark of pandas for a missing value."""
    is_nan = isinstance(value, (float, np.floating)) and bool(np.isnan(value))
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _unmixed(column: Any, kinds: str) -> Any:
    """Return the column as an array; a list of other kinds keeps its values for the error."""
    array = np.asarray(column)
    is_expected = array.dtype.kind in kinds or not isinstance(column, list)
    return array if is_expected else np.array(column, object)


def _numbers(values: Any, field: Field) -> Any:
    """Return a column of numbers; None and NaN are missing, as in a file."""
    if field.missing is None or values.dtype.kind not in "Of":
        return values
    try:
        values = values.astype(np.float32)
    except (TypeError, ValueError):
        return values  # the reader reports the problem
    return np.where(np.isnan(values), np.float32(field.missing), values)


def _checked(feature: Feature) -> Feature:
    if not isinstance(feature, Feature) or isinstance(feature, Label):
        raise ConfigError(
            "Features takes Numeric, Categorical, MultiValued and Sequence objects, got "
            f"{feature!r:.100}; pass them as Features(*features), and a Label as label="
        )
    return feature
