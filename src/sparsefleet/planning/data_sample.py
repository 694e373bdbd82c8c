"""Estimates the lookups of a mini-batch from real data: number of ids, repetition and skew."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsefleet.data import ArrowIpc, CriteoTsv, Csv, Field, MultiSlot, Parquet, Reader, Slot
from sparsefleet.data.arrow_format import file_errors
from sparsefleet.data.byte_source import check_zstd, compression_of, open_file, read_blocks
from sparsefleet.data.file_list import list_files
from sparsefleet.data.record_source import RecordFormat
from sparsefleet.errors import ConfigError, InputFileError

__all__ = [
    "DataSample",
    "FORMATS",
    "read_sample",
]

FORMATS = ("auto", "multislot", "criteo", "csv", "parquet", "arrow")
_MOST_EXAMPLES = 200_000
_CRITEO_COLUMNS = 40
_HOTTEST = 0.001
_BLOCK_BYTES = 64 * 1024
_MOST_TEXT_BYTES = 16 << 20  # of the lines that show the format
_ARROW_MAGIC = b"ARROW1"
_ENDINGS = {"parquet": "parquet", "arrow": "arrow", "feather": "arrow", "csv": "csv"}
_SEPARATORS = (",", "\t", ";", "|")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSample:
    """The statistics of a sample."""

    examples: int
    ids_per_example: float
    distinct_per_batch: float
    """Distinct ids in a mini-batch, as a fraction of all its ids."""
    growth: float
    """Exponent of Heaps' law: n mini-batches have `n ** growth` times the distinct ids of one."""
    distinct: int
    """Distinct ids in the whole sample."""
    hot_share: float
    """The share of all lookups that go to the most frequent 0.1% of the ids."""
    hottest_share: float
    """The share of lookups that go to the most frequent id."""
    columns: tuple[str, ...]
    """The columns that count as ids."""


def read_sample(data: str, *, batch: int, file_format: str = "auto", label: str = "") -> DataSample:
    """Read up to 200,000 records from the files matching a path or pattern, with the usual readers.

    Integer and string columns count as ids, except `label`, "label" and "click"; float columns do
    not. Each column has its own ids.
    """
    files = [os.fspath(path) for path in list_files(data)]
    chosen, names = _format_of(file_format, files[0])
    if label and label not in names:
        raise ConfigError(
            f"--label {label!r} is not a column of {data}, which has {', '.join(names)}"
        )
    reader = Reader(files, chosen, batch)
    kept = [
        slot.name
        for slot in chosen.columns
        if slot.dtype == "uint64" and slot.name not in {label, "label", "click"}
    ]
    if not kept:
        raise ConfigError(
            f"--sample {data}: no id column among {', '.join(names) or 'no columns'}; ids must be "
            "integers or strings"
        )
    batches: list[np.ndarray] = []
    examples = 0
    for one in reader:
        columns = one[0] if isinstance(one, tuple) else one
        ids, size = _ids_of(columns, kept)
        batches.append(ids)
        examples += size
        if examples >= _MOST_EXAMPLES:
            break
    if not examples or not sum(map(len, batches)):
        raise ConfigError(
            f"--sample {data}: no ids in the columns {', '.join(kept)} of {examples} records; "
            "check the file and --format"
        )
    return _summary(batches, examples, tuple(kept))


def _ids_of(columns: Any, names: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return the ids of a batch, made distinct per column, and its number of examples."""
    parts, size = [], 0
    for number, name in enumerate(names):
        found = columns[name]
        values, size = (found[0], len(found[1])) if isinstance(found, tuple) else (found, 0)
        size = size or len(values)
        mixed = values.reshape(-1).astype(np.int64).view(np.uint64)
        with np.errstate(over="ignore"):
            mixed = (mixed + np.uint64(number * 0x632BE59BD9B4E019 % 2**64)) * np.uint64(
                0x9E3779B97F4A7C15
            )
        parts.append(mixed)
    return np.concatenate(parts), size


def _summary(batches: Sequence[np.ndarray], examples: int, columns: tuple[str, ...]) -> DataSample:
    everything = np.concatenate(batches)
    _, counts = np.unique(everything, return_counts=True)
    counts = np.sort(counts)[::-1]
    whole = batches[: max(1, len(batches) - 1)]  # the last batch may be short
    each = float(np.mean([len(np.unique(one)) for one in whole]))
    per_batch = float(np.mean([len(one) for one in whole]))
    growth = 1.0
    if len(whole) > 1:
        together = len(np.unique(np.concatenate(whole)))
        growth = min(1.0, max(0.0, math.log(together / each) / math.log(len(whole))))
    hottest = max(1, round(len(counts) * _HOTTEST))
    return DataSample(
        examples=examples,
        ids_per_example=len(everything) / examples,
        distinct_per_batch=each / per_batch,
        growth=growth,
        distinct=len(counts),
        hot_share=float(counts[:hottest].sum() / counts.sum()),
        hottest_share=float(counts[0] / counts.sum()),
        columns=columns,
    )


# -- formats ----------------------------------------------------------------------------------


def _format_of(name: str, path: str) -> tuple[RecordFormat, Sequence[str]]:
    """Return how to read the ids of a file, and the names of all its columns."""
    if name not in FORMATS:
        raise ConfigError(f"--format must be one of {', '.join(FORMATS)}, got {name!r}")
    bare = path.removesuffix(".gz").removesuffix(".zst").removesuffix(".zstd")
    if name == "auto":
        name = _ENDINGS.get(bare.rpartition(".")[2].lower(), "")
    if name in ("parquet", "arrow"):
        return _columnar(name, path)
    lines = list(_first_lines(path))
    if not lines:
        raise ConfigError(f"--sample {path}: the file is empty; expected records")
    if name == "criteo" or (not name and lines[0].count("\t") == _CRITEO_COLUMNS - 1):
        return _with_names(CriteoTsv())
    is_csv = name == "csv" or (not name and bare.lower().endswith(".tsv"))
    return _csv(lines, path) if is_csv else _with_names(_multi_slot(lines, path))


def _with_names(chosen: RecordFormat) -> tuple[RecordFormat, Sequence[str]]:
    return chosen, [slot.name for slot in chosen.columns]


def _first_lines(path: str, most: int = 50) -> Iterator[str]:
    """Yield the first non-blank lines of a file, which may be remote or compressed."""
    compression = compression_of(path, "infer")
    if compression == "zstd":
        check_zstd()
    blocks: list[bytes] = []
    ends = size = 0
    with open_file(path, {}) as file:
        for block in read_blocks(file, path, compression, _BLOCK_BYTES):
            blocks.append(block)
            ends += block.count(b"\n")
            size += len(block)
            if ends > most or (ends and size >= _MOST_TEXT_BYTES):
                break
            if size >= _MOST_TEXT_BYTES:
                raise InputFileError(
                    f"{path}: the first line has more than {size:,} bytes; expected a text file "
                    "with one record per line"
                )
        else:
            blocks.append(b"\n")
    for line in b"".join(blocks).split(b"\n")[:-1][:most]:  # the last line may be truncated
        if line.strip():
            yield line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def _columnar(name: str, path: str) -> tuple[RecordFormat, Sequence[str]]:
    import pyarrow as pa
    import pyarrow.parquet

    from sparsefleet.data.arrow_columns import is_list, is_text

    def is_id(kind: pa.DataType) -> bool:
        inner = kind.value_type if is_list(kind) else kind
        if pa.types.is_dictionary(inner):
            inner = inner.value_type
        return bool(pa.types.is_integer(inner)) or is_text(inner)

    with open_file(path, {}) as file, file_errors(path, name.capitalize()):
        if name == "parquet":
            schema = pyarrow.parquet.read_schema(file)
        else:
            is_stream = file.read(len(_ARROW_MAGIC)) != _ARROW_MAGIC
            file.seek(0)
            schema = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file).schema
    slots: list[Slot] = [
        Field(field.name, "uint64", None if is_list(field.type) else (), missing=0)
        for field in schema
        if is_id(field.type)
    ]
    if not slots:
        raise ConfigError(
            f"--sample {path}: no integer or string column among {', '.join(schema.names)}"
        )
    return (Parquet(*slots) if name == "parquet" else ArrowIpc(*slots)), schema.names


def _csv(lines: Sequence[str], path: str) -> tuple[RecordFormat, Sequence[str]]:
    separator = max(_SEPARATORS, key=lines[0].count)
    rows = list(csv.reader(lines, delimiter=separator))
    if len(rows) < 2:
        raise ConfigError(
            f"--sample {path}: a CSV file needs a line with column names, followed by records"
        )
    slots: list[Field] = []
    names = [name.strip() for name in rows[0]]
    for number, name in enumerate(names):
        values = [row[number].strip() for row in rows[1:] if number < len(row)]
        if not _are_floats([value for value in values if value]):
            # Numbers are hashed too, since the column may hold words in later lines.
            slots.append(Field(name, "uint64", (), missing=0, hash_seed=0))
    if not slots:
        raise ConfigError(
            f"--sample {path}: no integer or string column among {', '.join(rows[0])}"
        )
    return Csv(*slots, separator=separator), names


def _are_floats(values: Sequence[str]) -> bool:
    """Return whether all values are numbers and at least one is not an integer."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return bool(numbers) and not all(value.lstrip("+-").isdigit() for value in values)


def _multi_slot(lines: Sequence[str], path: str) -> RecordFormat:
    """Find the slots of MultiSlot lines, which hold a count and that many values for every slot."""
    kinds: list[bool] = []
    for line in lines:
        words, place, slot = line.split(), 0, 0
        while place < len(words):
            if not words[place].isdigit() or place + int(words[place]) >= len(words):
                raise ConfigError(
                    f"--sample {path}: the line {line[:60]!r} is not MultiSlot (each slot as a "
                    f"count and its values); choose --format {'|'.join(FORMATS[1:])}"
                )
            end = place + 1 + int(words[place])
            is_float = not all(word.isdigit() for word in words[place + 1 : end])
            if slot == len(kinds):
                kinds.append(is_float)
            kinds[slot] = kinds[slot] or is_float
            place, slot = end, slot + 1
    return MultiSlot(
        *(
            Slot(f"slot{number}", "float" if is_float else "uint64")
            for number, is_float in enumerate(kinds)
        )
    )
