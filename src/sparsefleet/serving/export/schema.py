"""The inputs, lookups and outputs of an exported model.

A dimension is an int or a name: "batch" counts examples, any other name is a separate size.
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
    """The parameter of the model's `forward`, or the key in its dict; dots separate nested
    names.
    """

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
        """Return whether there is one more offset than examples, which is the number of values."""
        return self.offsets == ("batch + 1",)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Return the graph names of its arrays: one name, or one each for values and offsets."""
        return (f"{self.name}.values", f"{self.name}.offsets") if self.is_ragged else (self.name,)

    def __str__(self) -> str:
        values = f"{self.name}: {describe(self.dtype, self.shape)}"
        if self.offsets is None:
            return values
        return f"{values}, offsets {describe('int64', self.offsets)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSchema:
    """One output."""

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
    """The input array that holds the ids; None if they are computed from inputs."""

    padding_id: int | None
    """The id that has no row and reads as zeros."""

    unknown: Literal["zeros", "initial"]
    """How ids without a row are read."""


@functools.lru_cache(maxsize=256)
def _positions(vocabulary: tuple[str, ...]) -> dict[str, int]:
    return {text: place for place, text in enumerate(vocabulary, 1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class HashedInput:
    """How strings become the ids of an input, exactly as the reader hashed them in training."""

    input: str
    """The name of the input."""

    seed: int
    """A string's id is `data.hash64(string, seed)`."""

    seed_per_column: bool
    """Whether value i of an example is hashed with `seed + i`, as when the reader read several
    columns.
    """

    missing: int | None
    """The id that stands for a missing value; with None, a missing value is an error."""

    separator: str
    """Separates several values in one CSV cell; "" means spaces."""

    vocabulary: tuple[str, ...] = field(default=(), metadata={"optional": True})
    """All known strings. String i, from 0, has the id i + 1, any other has 0; if empty, all are
    hashed.
    """

    def id_of(self, text: str, place: int) -> int:
        """Return the id of a string that is value `place` of its example, in 0..2^64 - 1."""
        if self.vocabulary:
            return _positions(self.vocabulary).get(text, 0)
        return hash64(text, (self.seed + place) % 2**64 if self.seed_per_column else self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingInput:
    """The replacement for missing values of an input that takes only numbers, as in the reader."""

    input: str
    """The name of the input."""

    value: int | float
    """An id, or a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """All inputs, targets and lookups, in the order of positional inputs."""

    inputs: tuple[InputSchema, ...]
    targets: tuple[TargetSchema, ...]
    lookups: tuple[LookupSchema, ...]
    hashed: tuple[HashedInput, ...] = field(default=(), metadata={"optional": True})
    """Inputs that also accept strings."""

    filled: tuple[MissingInput, ...] = field(default=(), metadata={"optional": True})
    """Numeric inputs that may have missing values."""

    def hashing(self, name: str) -> HashedInput | None:
        """Return how an input's strings are hashed, or None if it takes only numbers."""
        return next((item for item in self.hashed if item.input == name), None)

    def filling(self, name: str) -> int | float | None:
        """Return the replacement for an input's missing numbers, or None if they are an error."""
        return next((item.value for item in self.filled if item.input == name), None)

    def takes_null(self, name: str) -> bool:
        """Return whether a value of this input may be missing."""
        hashed = self.hashing(name)
        return self.filling(name) is not None or (hashed is not None and hashed.missing is not None)

    @property
    def places(self) -> tuple[str, ...]:
        """Return the distinct names of positional inputs: the part before the first dot."""
        return tuple(dict.fromkeys(item.name.split(".")[0] for item in self.inputs))
