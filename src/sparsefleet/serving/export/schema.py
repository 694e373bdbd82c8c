"""The inputs, lookups and outputs of an exported model.

A dimension is an int or a name: "batch" is the number of examples; any other name is a separate
size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from sparsefleet.data import hash64

__all__ = [
    "HashedInput",
    "InputSchema",
    "LookupSchema",
    "MissingInput",
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
