"""The registry of operator types, with their torch functions and output shape rules."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "OpDef",
    "SAME_FLOATS",
    "ShapeRule",
    "Slot",
    "common_shape",
    "find_op",
    "float_rule",
    "op",
    "op_types",
    "product_of",
    "same_size",
]

LodRule = Literal["share", "none", "rows", "function"]
LodOfSettings = Callable[[Mapping[str, Any]], LodRule]
Shape = tuple[int, ...]
ShapeFunction = Callable[..., "list[Shape] | None"]

_FAMILIES = (
    "activations",
    "algebra",
    "arrays",
    "beams",
    "blocks",
    "boxes",
    "click_rates",
    "collective",
    "convolutions",
    "decoding",
    "deformable",
    "detection_losses",
    "detection_outputs",
    "detection_targets",
    "elementwise",
    "embedding",
    "filling",
    "fused",
    "indexing",
    "inspection",
    "labelling",
    "lookups",
    "losses",
    "lstm",
    "matching",
    "matrices",
    "metrics",
    "normalization",
    "optimizers",
    "patterns",
    "pools",
    "priors",
    "ranking",
    "recurrent",
    "reductions",
    "regions",
    "resizing",
    "sampled_losses",
    "schedules",
    "sequence_edits",
    "sequences",
    "shaping",
    "suppression",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """An operator's input or output slot.

    It holds one variable, at most one (`?`), or several (`*`).
    """

    name: str
    many: bool = False
    optional: bool = False

    @classmethod
    def parse(cls, text: str) -> Slot:
        return cls(text.rstrip("*?"), many="*" in text, optional="?" in text)


@dataclass(frozen=True, slots=True)
class ShapeRule:
    """A rule that computes output shapes from input shapes; -1 is an unknown size.

    Operators without a rule are run on empty tensors instead. The first such run loads large parts
    of torch, which costs over a second and 70 MiB; a program with only common operators avoids it.
    """

    function: ShapeFunction
    """A function of the shapes by slot and all attrs. Returns None for inputs that the rule does
    not cover, and raises ValueError for shapes that do not match.
    """
    dtypes: tuple[str, ...] = ()
    """Types of the outputs; "" or a missing entry means the type of the first input."""
    only_floats: bool = False
    """Whether the rule needs a floating-point first input and the same type for all others."""
    takes_indices: bool = False
    """With `only_floats`, whether the other inputs may instead be integer classes or ids."""


def float_rule(function: ShapeFunction, *dtypes: str, takes_indices: bool = False) -> ShapeRule:
    """Return a rule for floating-point inputs. For other inputs, operators run on empty tensors."""
    return ShapeRule(function, dtypes, only_floats=True, takes_indices=takes_indices)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpDef:
    """An operator type, with its slots and the function that computes it."""

    type: str
    function: Callable[..., Any]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    lod: LodRule | LodOfSettings
    """With "share", outputs have the LoD of the first input that has one; with "rows", only outputs
    with the same number of rows have it; with "none", no output has a LoD. With "function", the
    function takes `lods`, one per slot, and returns (outputs, their LoD), or a list with the LoD of
    each output. May also be a function of the attrs.
    """
    in_place: bool
    """Whether the operator changes its inputs in place. If so, the function returns nothing."""
    has_effect: bool
    """Whether the operator runs even if its outputs are not used."""
    shape: ShapeRule | None
    infer: ShapeFunction | None
    """A function that computes output shapes from input shapes, for operators that cannot run
    without data. Returns None if the operator can run for these inputs.
    """
    settings: frozenset[str]
    """The attrs that the function takes; other attrs only annotate the layer."""

    def lod_rule(self, attrs: Mapping[str, Any]) -> LodRule:
        """Return the LoD rule for an operator with these attrs."""
        return self.lod(attrs) if callable(self.lod) else self.lod


_found: dict[str, OpDef] = {}
_loaded = False


def op(
    type: str,
    inputs: str,
    outputs: str = "Out",
    *,
    lod: LodRule | LodOfSettings = "share",
    in_place: bool = False,
    has_effect: bool = False,
    shape: ShapeRule | None = None,
    infer: ShapeFunction | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an operator type.

    The function takes a positional tensor for each input slot (None if missing, a list for `*`),
    and attrs by keyword. It returns one tensor per output slot.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters.values()
        _found[type] = OpDef(
            type=type,
            function=function,
            inputs=tuple(map(Slot.parse, inputs.split())),
            outputs=tuple(map(Slot.parse, outputs.split())),
            lod=lod,
            in_place=in_place,
            has_effect=has_effect or in_place,
            shape=shape,
            infer=infer,
            settings=frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
        )
        return function

    return register


def find_op(type: str) -> OpDef | None:
    """Return the definition of an operator type, or None if the type is unknown."""
    _load()
    return _found.get(type)


def op_types() -> Iterator[str]:
    """Return all operator types."""
    _load()
    return iter(sorted(_found))


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in _FAMILIES:
            importlib.import_module(f"sparsefleet.fluid.operators.{family}")


def same_size(first: int, second: int) -> int:
    """Return the common value of two sizes, either of which may be -1. Raises ValueError if they
    differ.

    >>> same_size(-1, 3), same_size(-1, -1)
    (3, -1)
    """
    if first < 0 or second < 0:
        return max(first, second)
    if first != second:
        raise ValueError(f"sizes {first} and {second} differ")
    return first


def product_of(sizes: Sequence[int]) -> int:
    """Return the product of sizes, or -1 if any size is unknown."""
    return math.prod(sizes) if all(size >= 0 for size in sizes) else -1


def common_shape(shapes: Sequence[Shape], but: Collection[int] = ()) -> Shape:
    """Return the shape that all inputs must have, except for the axes in `but`.

    >>> common_shape([(-1, 3), (4, 3)]), common_shape([(2, 3), (4, 3)], but=[0])
    ((4, 3), (2, 3))
    """
    made = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != len(made):
            raise ValueError(
                f"inputs have {len(made)} and {len(shape)} axes, expected the same number of axes"
            )
        made = [
            size if place in but else same_size(size, other)
            for place, (size, other) in enumerate(zip(made, shape, strict=True))
        ]
    return tuple(made)


def _same_floats(x: Shape, /, *others: Shape | None, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [x] if all(other is None for other in others) else None


SAME_FLOATS = float_rule(_same_floats)
"""A rule: without optional inputs, the output has the shape and type of the first input."""
