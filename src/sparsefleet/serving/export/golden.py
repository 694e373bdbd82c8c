"""Golden examples: inputs stored with the trained model's predictions for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from sparsefleet.errors import CorruptFileError
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.export.row_file import RowFile
from sparsefleet.store import Rows, Store
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown

if TYPE_CHECKING:
    from sparsefleet.nn.pulled_rows import Pull  # needs torch

__all__ = ["Golden", "GoldenRows", "largest_difference", "read_golden", "write_golden"]

_INPUT, _TARGET = "input/", "target/"


class Golden(NamedTuple):
    """The input and target arrays of golden examples, by graph name."""

    inputs: Arrays
    targets: Arrays

    @property
    def examples(self) -> int:
        first = next(iter(self.targets.values()))
        return len(first) if first.ndim else 1


def write_golden(pending: PendingExport, golden: Golden) -> str:
    """Write inputs and targets and return the file name."""
    path = pending.path("golden", "safetensors")
    arrays = {f"{_INPUT}{name}": array for name, array in golden.inputs.items()}
    arrays |= {f"{_TARGET}{name}": array for name, array in golden.targets.items()}
    path.write_bytes(save({name: np.ascontiguousarray(x) for name, x in arrays.items()}))
    return pending.seal(path)


def read_golden(path: Path, schema: Schema) -> Golden:
    """Read the inputs and targets named in the schema."""
    try:
        arrays = load_file(path)
        inputs = {name: arrays[_INPUT + name] for item in schema.inputs for name in item.arrays}
        targets = {item.name: arrays[_TARGET + item.name] for item in schema.targets}
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError) as error:
        raise CorruptFileError(f"{path} has no golden examples for this model: {error}") from error
    return Golden(inputs, targets)


def largest_difference(found: Arrays, wanted: Arrays) -> float:
    """Return the largest difference over all targets and examples.

    A difference is relative for values above 1, and inf if only one of the two values is NaN.

    >>> largest_difference({"p": np.array([0.5, 20.0])}, {"p": np.array([0.25, 10.0])})
    1.0
    """
    largest = 0.0
    for name, value in wanted.items():
        one, other = found[name].astype(np.float64), value.astype(np.float64)
        if one.shape != other.shape:
            return float("inf")
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            distance = np.abs(one - other) / np.maximum(1.0, np.abs(other))
        distance = np.where(same, 0.0, np.nan_to_num(distance, nan=np.inf))
        largest = max(largest, float(distance.max(initial=0.0)))
    return largest


class GoldenRows:
    """The rows that golden examples look up, before the row format reduces their precision.

    Records the keys that a first run looks up, keeps the rows of those keys while the files are
    written, and serves the rows to a second run. Training may continue during the export, so by
    then the store may hold different values.
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._wanted: dict[str, Keys] = {}
        self._kept: dict[str, list[tuple[Keys, Floats]]] = {}

    def pull_and_note(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        """Implement `nn.Pull` by reading from the stores and recording the keys."""
        del train
        found = {}
        for table, wanted in keys.items():
            before = self._wanted.get(table, wanted)
            self._wanted[table] = np.union1d(before, wanted)
            found[table] = self._stores[table].pull(table, wanted, train=False, unknown=unknown)
        return found

    def passing(self, table: str, chunks: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the chunks unchanged, and keep a copy of the rows of recorded keys."""
        wanted = self._wanted.get(table, np.empty(0, np.uint64))
        kept = self._kept.setdefault(table, [])
        for chunk in chunks:
            here = np.isin(chunk.keys, wanted)
            if here.any():
                kept.append((chunk.keys[here], chunk.values[here]))
            yield chunk

    def pull_from(self, files: Mapping[str, RowFile]) -> Pull:
        """Return an `nn.Pull` that serves the kept rows and reads all others from the files."""

        def pull(
            keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
        ) -> dict[str, Floats]:
            del train
            return {
                table: self._as_kept(table, wanted, files[table].rows_of(wanted, unknown))
                if table in files
                else self._stores[table].pull(table, wanted, train=False, unknown=unknown)
                for table, wanted in keys.items()
            }

        return pull

    def _as_kept(self, table: str, keys: Keys, rows: Floats) -> Floats:
        order = np.argsort(keys)
        for kept_keys, values in self._kept.get(table, []):
            places = np.searchsorted(keys, kept_keys, sorter=order)
            places = order[np.minimum(places, len(keys) - 1)]
            same = keys[places] == kept_keys
            rows[places[same]] = values[same]
        return rows
