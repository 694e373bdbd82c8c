"""Golden examples: inputs, and what the trained model said of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.pending_export import PendingExport
from sparsefleet.export.schema import Schema

__all__ = ["Golden", "largest_difference", "read_golden", "write_golden"]

_INPUT, _TARGET = "input/", "target/"


class Golden(NamedTuple):
    """Arrays by their names in the graph."""

    inputs: Arrays
    targets: Arrays

    @property
    def examples(self) -> int:
        first = next(iter(self.targets.values()))
        return len(first) if first.ndim else 1


def write_golden(pending: PendingExport, golden: Golden) -> str:
    """Writes inputs and targets; the name of the file."""
    path = pending.path("golden", "safetensors")
    arrays = {f"{_INPUT}{name}": array for name, array in golden.inputs.items()}
    arrays |= {f"{_TARGET}{name}": array for name, array in golden.targets.items()}
    path.write_bytes(save({name: np.ascontiguousarray(x) for name, x in arrays.items()}))
    return pending.seal(path)


def read_golden(path: Path, schema: Schema) -> Golden:
    """Inputs and targets, which the schema names."""
    try:
        arrays = load_file(path)
        inputs = {name: arrays[_INPUT + name] for item in schema.inputs for name in item.arrays}
        targets = {item.name: arrays[_TARGET + item.name] for item in schema.targets}
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError) as error:
        raise CorruptFileError(f"{path} has no golden examples of this model: {error}") from error
    return Golden(inputs, targets)


def largest_difference(found: Arrays, wanted: Arrays) -> float:
    """Over all targets and examples, relative to numbers above 1; inf where only one is NaN.

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
