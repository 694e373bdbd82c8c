"""One feed for several replicas: each gets its share of the samples. Letters: P replicas."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsefleet.fluid.feeding import Fed
from sparsefleet.fluid.lowering.lowered import Lod

__all__ = ["split_fed"]


def split_fed(fed: Fed, count: int, whole: Sequence[str] = ()) -> list[Fed]:
    """`count` feeds whose samples follow each other; their numbers differ by one at most.

    whole: names that every replica gets as they are.

    >>> feeds = split_fed(({"x": torch.arange(5)}, {}), 2)
    >>> [values["x"].tolist() for values, _ in feeds]
    [[0, 1, 2], [3, 4]]
    """
    feeds: list[Fed] = [({}, {}) for _ in range(count)]
    for name, tensor in fed[0].items():
        lod = fed[1].get(name, ())
        parts = [(tensor, lod)] * count if name in whole else _split(name, tensor, lod, count)
        for (values, lods), (part, part_lod) in zip(feeds, parts, strict=True):
            values[name] = part
            if part_lod:
                lods[name] = part_lod
    return feeds


def _split(name: str, tensor: torch.Tensor, lod: Lod, count: int) -> list[tuple[torch.Tensor, Lod]]:
    total = len(lod[0]) - 1 if lod else (len(tensor) if tensor.dim() else 1)
    if total < count:
        raise ValueError(
            f"fed to '{name}': {total} samples for {count} replicas, wanted at least one for each; "
            "feed more at once, or set CPU_NUM or places to fewer"
        )
    share, more = divmod(total, count)
    cuts = [index * share + min(index, more) for index in range(count + 1)]
    return [_part(tensor, lod, cuts[index], cuts[index + 1]) for index in range(count)]


def _part(tensor: torch.Tensor, lod: Lod, begin: int, end: int) -> tuple[torch.Tensor, Lod]:
    levels = []
    for level in lod:
        offsets = level[begin : end + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        levels.append(offsets - begin)
    return tensor[begin:end], tuple(levels)
