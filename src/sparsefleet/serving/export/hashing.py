"""Hash input strings to ids and fill in missing values, as the reader did in training.

In shapes, B is the number of examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.data import CriteoTsv, Field, Reader, RecordFormat, Slot
from sparsefleet.data.features import Features as FeatureDescription
from sparsefleet.errors import ConfigError
from sparsefleet.serving.export.manifest import HashedInput, MissingInput, Schema

__all__ = [
    "Features",
    "STRINGS_NEED_FEATURES",
    "hash_array",
    "hash_column",
    "hash_values",
    "hashed_inputs",
    "missing_inputs",
]

STRINGS_NEED_FEATURES = (
    "strings need a model that was exported with features= in which this input has a hash_seed or "
    "a vocabulary"
)
"""Advice for a string in an input that takes only numbers."""

Features = Reader | RecordFormat | FeatureDescription | Iterable[Slot]
"""A description of training data: a reader, its format, a feature description, or fields."""


def hashed_inputs(features: Features, schema: Schema) -> tuple[HashedInput, ...]:
    """Return the inputs whose ids the reader hashed from strings.

    These are the fields with a `hash_seed`, and the categories of `CriteoTsv`. A nested input is
    matched by the last part of its name. Raises ConfigError if no input matches.

    >>> from sparsefleet.serving.export.manifest import InputSchema
    >>> ads = InputSchema(name="ads", dtype="int64", shape=("batch",))
    >>> schema = Schema(inputs=(ads,), targets=(), lookups=())
    >>> hashed_inputs([Field("ads", shape=(), hash_seed=7)], schema)[0].seed
    7
    """
    described = {item.input: item for item in _described(features)}
    found = []
    for item in schema.inputs:
        known = described.get(item.name) or described.get(item.name.rpartition(".")[2])
        if known is not None and item.dtype == "int64":
            found.append(
                HashedInput(
                    input=item.name,
                    seed=known.seed,
                    seed_per_column=known.seed_per_column,
                    missing=known.missing,
                    separator=known.separator,
                    vocabulary=known.vocabulary,
                )
            )
    if described and not found:
        raise ConfigError(
            f"features hashes {', '.join(described)}, but the model's inputs are "
            f"{', '.join(item.name for item in schema.inputs)}; name the fields after the inputs"
        )
    return tuple(found)


def missing_inputs(features: Features, schema: Schema) -> tuple[MissingInput, ...]:
    """Return the numeric inputs whose missing values the reader replaced.

    >>> from sparsefleet.serving.export.manifest import InputSchema
    >>> age = InputSchema(name="age", dtype="float32", shape=("batch",))
    >>> schema = Schema(inputs=(age,), targets=(), lookups=())
    >>> missing_inputs([Field("age", "float", (), missing=38.0)], schema)[0].value
    38.0
    """
    described = {
        slot.name: slot.missing_float if slot.dtype == "float" else slot.missing_id
        for slot in _slots(features)
        if isinstance(slot, Field) and slot.hash_seed is None
    }
    found = []
    for item in schema.inputs:
        value = described.get(item.name, described.get(item.name.rpartition(".")[2]))
        if value is not None:
            found.append(MissingInput(input=item.name, value=value))
    return tuple(found)


def _described(features: Features) -> list[HashedInput]:
    source = features.format if isinstance(features, Reader) else features
    if isinstance(source, CriteoTsv):
        if source.categories != "hash":
            return []
        return [
            HashedInput(
                input="categories", seed=0, seed_per_column=True, missing=None, separator=""
            )
        ]
    return [
        HashedInput(
            input=slot.name,
            seed=slot.hash_seed,
            seed_per_column=len(slot.source) > 1,
            missing=slot.missing_id if slot.vocabulary is None else 0,
            separator=slot.separator,
            vocabulary=slot.vocabulary or (),
        )
        for slot in _slots(features)
        if isinstance(slot, Field) and slot.hash_seed is not None
    ]


def _slots(features: Features) -> list[Slot]:
    """Return the fields that training read, or no fields if the format has its own layout."""
    columns: Any = features
    if isinstance(features, (Reader, RecordFormat)):
        columns = features.columns
    elif isinstance(features, FeatureDescription):
        columns = features.fields
    slots = list(columns)
    for slot in slots:
        if not isinstance(slot, Slot):
            raise ConfigError(
                "features must be a Reader, a format such as Csv(...), or a list of fields, got "
                f"{features!r:.80}"
            )
    return slots


def hash_values(values: list[Any], hashed: HashedInput, width: int) -> list[Any]:
    """Return the values, with strings replaced by their ids and None by the id for missing values.

    width: the number of values per example, if fixed. Numbers are ids already and stay unchanged.

    >>> tags = HashedInput(input="tags", seed=0, seed_per_column=False, missing=5, separator="")
    >>> hash_values(["xxhash", 3, None], tags, 1)
    [3665147885093898016, 3, 5]
    """
    ids = list(values)
    for at, value in enumerate(values):
        if isinstance(value, str):
            ids[at] = hashed.id_of(value, at % width if width else 0)
        elif value is None and hashed.missing is not None:
            ids[at] = hashed.missing
    return ids


def hash_array(array: NDArray[Any], hashed: HashedInput) -> NDArray[np.int64]:
    """Return the ids for an array of strings, as int64 of the same shape.

    None is a missing value; it requires that `hashed` has an id for missing values.
    """
    width = 1 if array.ndim < 2 else array[:1].size
    ids = hash_values(array.reshape(-1).tolist(), hashed, width)
    keys = np.fromiter((number % 2**64 for number in ids), np.uint64, array.size)
    return keys.view(np.int64).reshape(array.shape)


def hash_column(flat: pa.Array, hashed: HashedInput, width: int) -> pa.Array:
    """Return the ids for a flat column of strings, with the id for missing values in place of
    nulls.

    width: the number of values per example, if fixed. Other columns are returned unchanged.
    """
    if pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type):
        ids = hash_values(flat.to_pylist(), hashed, width)
        return pa.array([None if i is None else i % 2**64 for i in ids], pa.uint64())
    if flat.null_count and hashed.missing is not None and pa.types.is_integer(flat.type):
        return flat.fill_null(pa.scalar(hashed.missing, flat.type))
    return flat
