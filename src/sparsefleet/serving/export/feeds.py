"""Check a prediction's inputs against the schema.

In shapes, B is the number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.manifest import HashedInput, InputSchema, Schema, Shape, describe

__all__ = ["Arrays", "base_of", "check_feeds"]

Arrays = dict[str, NDArray[Any]]


def check_feeds(schema: Schema, inputs: Any) -> Arrays:
    """Return the arrays in `inputs` by graph name, each with the expected dtype and shape.

    inputs: a dict keyed by name, a tuple or list of positional inputs, or the only input itself.
        Arrays are NumPy arrays, CPU tensors or lists; uint64 is reinterpreted as int64, bit for
        bit, int32 is converted to int64, and lists of numbers to the expected float dtype. Strings
        and missing values (None, and NaN among floats) are replaced as in training.

    Raises FeedError if an input does not match.

    >>> from sparsefleet.serving.export.manifest import TargetSchema
    >>> ids = InputSchema(name="ids", dtype="int64", shape=("batch", 2))
    >>> schema = Schema(inputs=(ids,), targets=(), lookups=())
    >>> check_feeds(schema, np.array([[1, 2]]))
    {'ids': array([[1, 2]])}
    """
    given = dict(_named(schema, inputs))
    wanted = {item.name: item for item in schema.inputs}
    _check_names(given, wanted)
    sizes: dict[str, tuple[int, str]] = {}
    arrays: Arrays = {}
    for name, item in wanted.items():
        parts = _parts(item, given[name], schema)
        for array_name, part, shape in parts:
            arrays[array_name] = part
            _check_shape(item, array_name, part, shape, sizes)
        if item.is_ragged:
            _check_offsets(item, *(part for _, part, _ in parts))
    return arrays


def _named(schema: Schema, inputs: Any) -> Iterator[tuple[str, Any]]:
    """Yield the inputs by name, flattening inputs that are nested in the schema."""
    names = {item.name for item in schema.inputs}
    if isinstance(inputs, Mapping):
        for name, value in inputs.items():
            yield from _apart(str(name), value, names)
        return
    places = schema.places
    is_row = isinstance(inputs, (tuple, list))
    values = inputs if is_row and (len(places) > 1 or len(inputs) == 1) else [inputs]
    if len(values) != len(places):
        raise FeedError(f"got {len(values)} inputs, expected {len(places)}: {', '.join(places)}")
    for name, value in zip(places, values, strict=True):
        yield from _apart(name, value, names)


def _apart(name: str, value: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    if name in names:
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _apart(f"{name}.{key}", part, names)
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _apart(f"{name}.{index}", part, names)
    else:
        yield name, value


def _check_names(given: Mapping[str, Any], wanted: Mapping[str, InputSchema]) -> None:
    missing = [name for name in wanted if name not in given]
    more = [name for name in given if name not in wanted]
    if missing or more:
        text = [f"missing: {', '.join(missing)}"] if missing else []
        text += [f"unknown: {', '.join(more)}"] if more else []
        described = "; ".join(map(str, wanted.values()))
        raise FeedError(f"inputs do not match ({'; '.join(text)}); the model takes {described}")


def _parts(item: InputSchema, value: Any, schema: Schema) -> list[tuple[str, NDArray[Any], Shape]]:
    """Return the arrays of one input with their names and expected shapes."""
    if item.offsets is None:
        return [(item.name, _array(item, item.name, value, item.dtype, schema), item.shape)]
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise FeedError(
            f"input '{item.name}' is ragged and must be a pair (values, offsets), got a "
            f"{type(value).__name__}"
        )
    values, offsets = item.arrays
    return [
        (values, _array(item, values, value[0], item.dtype, schema), item.shape),
        (offsets, _array(item, offsets, value[1], "int64"), item.offsets),
    ]


def _array(
    item: InputSchema, name: str, value: Any, dtype: str, schema: Schema | None = None
) -> NDArray[Any]:
    """Return one array of an input; `schema` is None for offsets, which are never replaced."""
    if hasattr(value, "detach"):  # a tensor that may require a gradient
        value = value.detach()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError(f"input '{name}' cannot be read as an array: {error}") from error
    hashed = None if schema is None else schema.hashing(item.name)
    if hashed is not None and _holds_strings(array, or_none=hashed.missing is not None):
        from sparsefleet.serving.export.hashing import hash_array

        array = hash_array(array, hashed)
    elif schema is not None:
        array = _filled(array, schema.filling(item.name))
    if array.dtype == np.uint64 and dtype == "int64":
        array = array.view(np.int64)
    elif array.dtype == np.int32 and dtype == "int64":
        array = array.astype(np.int64)
    elif (
        dtype.startswith("float") and isinstance(value, (list, tuple)) and array.dtype.kind in "if"
    ):
        array = array.astype(dtype)  # Python's numbers have no width of their own
    if array.dtype != np.dtype(dtype):  # also true for a different byte order
        found = describe(array.dtype.name, array.shape)
        raise FeedError(
            f"input '{name}' is {found}, expected {item}; {_hint(array, dtype, hashed)}"
        )
    return np.ascontiguousarray(array)


def _filled(array: NDArray[Any], filling: int | float | None) -> NDArray[Any]:
    """Return the array with missing numbers replaced; NaN is missing too, as in the reader."""
    if filling is None:
        return array
    if array.dtype.kind == "f" and np.isnan(array).any():
        return np.where(np.isnan(array), array.dtype.type(filling), array)
    if array.dtype.kind != "O":
        return array
    values = [filling if value is None else value for value in array.reshape(-1).tolist()]
    wanted = (int, float) if isinstance(filling, float) else int
    if not all(isinstance(value, wanted) for value in values):
        return array
    numbers = np.array(values, np.float32 if isinstance(filling, float) else np.int64)
    return _filled(numbers, filling).reshape(array.shape)


def _hint(array: NDArray[Any], dtype: str, hashed: HashedInput | None) -> str:
    if array.dtype.kind == "O" and any(value is None for value in array.reshape(-1).tolist()):
        return "None needs a model whose features give this input a missing= value"
    if _holds_strings(array) and dtype == "int64":
        from sparsefleet.serving.export.hashing import STRINGS_NEED_FEATURES

        return STRINGS_NEED_FEATURES
    if hashed is not None:
        return "pass ids as integers, or strings to hash"
    return f"convert it with .astype(np.{dtype})"


def _holds_strings(array: NDArray[Any], *, or_none: bool = False) -> bool:
    if array.dtype.kind == "O":
        kinds = (str, type(None)) if or_none else str
        return all(isinstance(value, kinds) for value in array.reshape(-1).tolist())
    return array.dtype.kind == "U"


def _check_shape(
    item: InputSchema,
    name: str,
    array: NDArray[Any],
    shape: Shape,
    sizes: dict[str, tuple[int, str]],
) -> None:
    """Check an array's shape, and that dimensions with the same name have the same size.

    sizes: the size of each dimension seen so far and the array it came from; new ones are added.
    """
    fits = array.ndim == len(shape) and all(
        wanted == found or not isinstance(wanted, int)
        for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits:
        found = describe(array.dtype.name, array.shape)
        raise FeedError(f"input '{name}' is {found}, expected {item}")
    for dimension, size in zip(shape, array.shape, strict=True):
        if isinstance(dimension, int):
            continue
        base, size = base_of(dimension, size)
        known, owner = sizes.setdefault(base, (size, name))
        if known != size:
            raise FeedError(
                f"inputs '{owner}' and '{name}' do not match: the dimension '{base}' is {known} "
                f"in the first and {size} in the second"
            )


def base_of(dimension: str, size: int) -> tuple[str, int]:
    """Return a dimension's base name and size: "batch + 1" of size 5 means a batch of 4."""
    name, _, more = dimension.partition(" + ")
    return (name, size - int(more)) if more.isdigit() else (dimension, size)


def _check_offsets(item: InputSchema, values: NDArray[Any], offsets: NDArray[Any]) -> None:
    what = f"input '{item.name}': offsets"
    if offsets.size == 0:
        if len(values):
            raise FeedError(f"{what} must split {len(values)} values into examples, but are empty")
        return
    if offsets[0] != 0:
        raise FeedError(f"{what} must start at 0, got {offsets[0]}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        at = int(falls[0])
        raise FeedError(
            f"{what} must not decrease, but {offsets[at]} is followed by {offsets[at + 1]}"
        )
    if offsets[-1] > len(values):
        raise FeedError(f"{what} must stay within {len(values)} values, but go up to {offsets[-1]}")
    if item.is_closed and offsets[-1] != len(values):
        raise FeedError(
            f"{what} must end at the number of values, {len(values)}, got {offsets[-1]}"
        )
