"""Variables in lists, tuples and dicts, as states of cells and loops are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["flatten", "map_structure", "pack_like"]


def flatten(structure: Any) -> list[Any]:
    """What is in it, in order; of a dict, by its keys in order.

    >>> flatten({"b": [1, 2], "a": 3})
    [3, 1, 2]
    """
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def pack_like(structure: Any, leaves: Sequence[Any]) -> Any:
    """These leaves in the form of `structure`.

    >>> pack_like({"b": [1, 2], "a": 3}, "xyz")
    {'b': ['y', 'z'], 'a': 'x'}
    """
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        made = {key: _pack(structure[key], leaves) for key in sorted(structure)}
        return {key: made[key] for key in structure}
    if isinstance(structure, (list, tuple)):
        parts = [_pack(part, leaves) for part in structure]
        named = hasattr(structure, "_fields")
        return type(structure)(*parts) if named else type(structure)(parts)
    return next(leaves)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """The function of the leaves of each, in the form of the first.

    >>> map_structure(lambda x, y: x + y, [1, (2, 3)], [10, (20, 30)])
    [11, (22, 33)]
    """
    columns = [flatten(structure) for structure in structures]
    return pack_like(structures[0], [function(*row) for row in zip(*columns, strict=True)])
