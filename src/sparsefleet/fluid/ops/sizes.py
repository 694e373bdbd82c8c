"""Numbers of an operator that are known only when it runs, because variables give them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["open_sizes", "run_sizes"]

Tensor = torch.Tensor


def run_sizes(
    given: Sequence[int], whole: Tensor | None, parts: Sequence[Tensor], places: Sequence[int]
) -> list[int]:
    """`given` with the numbers of `parts` in `places`; or those of `whole`, if that is there.

    >>> run_sizes([-1, 3], None, [torch.tensor([5])], [0])
    [5, 3]
    """
    if whole is not None:
        return [int(number) for number in whole.reshape(-1)]
    found = list(given)
    for place, part in zip(places, parts, strict=True):
        found[place] = int(part)
    return found


def open_sizes(
    given: Sequence[int], whole: tuple[int, ...] | None, places: Sequence[int]
) -> list[int]:
    """What is known of them while the program is built; -1 for the others."""
    if whole is not None:
        if len(whole) != 1 or whole[0] < 0:
            raise ValueError(f"sizes given by a variable must be in one of shape [n], got {whole}")
        return [-1] * whole[0]
    return [-1 if place in places else size for place, size in enumerate(given)]
