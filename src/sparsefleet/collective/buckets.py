"""Which gradients travel together, and the memory in which they do.

Letters: P parameters of a bucket, S elements of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from sparsefleet.collective.strategy import CollectiveStrategy

__all__ = ["Bucket", "layer_by_module", "layer_by_prefix", "plan_buckets"]

NamedParameters = Sequence[tuple[str, torch.Tensor]]
LayerOf = Callable[[str], str]


def layer_by_prefix(name: str) -> str:
    """The layer of a Fluid parameter: its name before the first dot.

    >>> layer_by_prefix("fc_0.w_0")
    'fc_0'
    """
    return name.partition(".")[0]


def layer_by_module(name: str) -> str:
    """The layer of a parameter of a torch module: the path of the module that holds it.

    >>> layer_by_module("blocks.3.norm.weight")
    'blocks.3.norm'
    """
    return name.rpartition(".")[0] or name


def plan_buckets(
    parameters: NamedParameters,
    strategy: CollectiveStrategy,
    layer_of: LayerOf = layer_by_module,
) -> list[list[int]]:
    """Places in ``parameters`` of the gradients of each bucket, in the order of backward passes.

    As Fluid does it: gradients of a layer stay together; layers are gathered until a bucket is
    full, if there is a rule for that; buckets are then split by dtype. Without fusion every
    gradient is alone. The last parameter comes first, as its gradient usually does.

    >>> weights = [(f"fc_{i}.{kind}", torch.zeros(2)) for i in range(3) for kind in "wb"]
    >>> plan_buckets(weights, CollectiveStrategy(fuse_memory_mb=-1, fuse_groups=1))
    [[5, 4], [3, 2], [1, 0]]
    >>> plan_buckets(weights, CollectiveStrategy(fuse_memory_mb=-1, fuse_groups=3))
    [[5, 4, 3, 2], [1, 0]]
    """
    backwards = range(len(parameters) - 1, -1, -1)
    if not strategy.fuse_all_reduce:
        return [[place] for place in backwards]
    layers: dict[str, list[int]] = {}
    for place in backwards:
        layers.setdefault(layer_of(parameters[place][0]), []).append(place)
    joined = _join_layers(layers.values(), parameters, strategy)
    return [part for bucket in joined for part in _split_by_dtype(bucket, parameters)]


def _join_layers(
    layers: Iterable[list[int]], parameters: NamedParameters, strategy: CollectiveStrategy
) -> list[list[int]]:
    full_bytes, full_count = strategy.fuse_bytes(), strategy.fuse_count()
    if not full_bytes and not full_count:
        return [list(layer) for layer in layers]
    buckets: list[list[int]] = [[]]
    size = 0
    for layer in layers:
        if (full_bytes and size >= full_bytes) or 0 < full_count < len(buckets[-1]):
            buckets.append([])
            size = 0
        buckets[-1].extend(layer)
        size += sum(parameters[place][1].nbytes for place in layer)
    return [bucket for bucket in buckets if bucket]


def _split_by_dtype(bucket: list[int], parameters: NamedParameters) -> list[list[int]]:
    parts: dict[torch.dtype, list[int]] = {}
    for place in bucket:
        parts.setdefault(parameters[place][1].dtype, []).append(place)
    return list(parts.values())


class Bucket:
    """One buffer for the gradients of a bucket, each a view of it, and notes behind them."""

    def __init__(
        self,
        places: Sequence[int],
        parameters: NamedParameters,
        *,
        num_notes: int = 0,
        multiple_of: int = 1,
    ) -> None:
        """num_notes: further elements; multiple_of: what the length of the buffer is rounded up
        to."""
        tensors = [parameters[place][1] for place in places]
        sizes = [tensor.numel() for tensor in tensors]
        used = sum(sizes)
        length = -(-(used + num_notes) // multiple_of) * multiple_of
        self.places = list(places)
        """Of its parameters among all."""
        like = tensors[0] if tensors else parameters[0][1]
        self.buffer = torch.zeros(length, dtype=like.dtype, device=like.device)
        self.gradients = self.buffer[:used]
        """[S]"""
        self.notes = self.buffer[used : used + num_notes]
        """[num_notes]"""
        flat = torch.split_with_sizes(self.gradients, sizes)
        self.views = [_view_like(part, of) for part, of in zip(flat, tensors, strict=True)]
        """P views in the shapes of the parameters."""


def _view_like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``flat`` in the shape of ``tensor``, and in its order of memory if that is channels-last, as
    gradients then are."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    order = formats.get(tensor.dim())
    if order is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=order):
        return flat.view(tensor.shape)
    return flat.as_strided(tensor.shape, tensor.stride())
