"""What goes into an exported model, what it looks up, and what comes out.

A dimension is an int, or a name: "batch" counts examples, any other name is a size of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["InputSchema", "LookupSchema", "Schema", "TargetSchema"]

Shape = tuple[int | str, ...]


def describe(dtype: str, shape: Shape) -> str:
    """As people write it.

    >>> describe("int64", ("batch", 26))
    'int64[batch, 26]'
    """
    return f"{dtype}[{', '.join(map(str, shape))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSchema:
    """One input; a ragged one is a pair (values, offsets).

    >>> print(InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",)))
    tags: int64[tags], offsets int64[batch]
    """

    name: str
    """The parameter of the model's `forward`, or the key in its dict; dots lead into a nest."""

    dtype: str
    """As NumPy spells it."""

    shape: Shape
    """Of the array; of the values, if ragged."""

    offsets: Shape | None = None
    """Shape of the offsets, int64, of a ragged input; None for one that is not."""

    @property
    def is_ragged(self) -> bool:
        return self.offsets is not None

    @property
    def is_closed(self) -> bool:
        """Whether there is an offset more than examples: the number of values."""
        return self.offsets == ("batch + 1",)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its arrays in the graph: one, or those of values and offsets."""
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
    """Ids looked up in a table."""

    table: str
    ids: str | None
    """The array of ids among the inputs; None: computed from inputs."""

    padding_id: int | None
    """Ids that have no row and read as zeros."""

    unknown: Literal["zeros", "initial"]
    """What ids without a row read as."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """All of it, in the order in which inputs are given by place."""

    inputs: tuple[InputSchema, ...]
    targets: tuple[TargetSchema, ...]
    lookups: tuple[LookupSchema, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """Inputs given by place: their names up to the first dot, each once."""
        return tuple(dict.fromkeys(item.name.split(".")[0] for item in self.inputs))
