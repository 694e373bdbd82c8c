"""Buckets of gradients that are sent together, and their memory.

In shapes, P is the number of parameters in a bucket, S the number of elements in all of them, and R
the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from sparsefleet.collective.reduction import Reduction
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.world import World

__all__ = ["Bucket", "BucketRound", "layer_by_module", "layer_by_prefix", "plan_buckets"]


NamedParameters = Sequence[tuple[str, torch.Tensor]]
LayerOf = Callable[[str], str]


def layer_by_prefix(name: str) -> str:
    """Return the layer of a Fluid parameter: its name before the first dot.

    >>> layer_by_prefix("fc_0.w_0")
    'fc_0'
    """
    return name.partition(".")[0]


def layer_by_module(name: str) -> str:
    """Return the layer of a torch parameter: the path of the module that holds it.

    >>> layer_by_module("blocks.3.norm.weight")
    'blocks.3.norm'
    """
    return name.rpartition(".")[0] or name


def plan_buckets(
    parameters: NamedParameters,
    strategy: CollectiveStrategy,
    layer_of: LayerOf = layer_by_module,
    *,
    default_bytes: int = 0,
) -> list[list[int]]:
    """Return the indices of the parameters in each bucket, in the order of the backward pass.

    As in Fluid, gradients of a layer stay together; layers are collected until a bucket is full, if
    there is a limit; and buckets are then split by dtype. Without fusion, every gradient has its
    own bucket. The last parameter comes first, since its gradient usually arrives first.
    default_bytes: the size of a full bucket if the strategy does not set it; 0 means one bucket per
        layer.

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
    full_bytes, full_count = strategy.fuse_bytes(default_bytes), strategy.fuse_count()
    joined = _join_layers(layers.values(), parameters, full_bytes, full_count)
    return [part for bucket in joined for part in _split_by_dtype(bucket, parameters)]


def _join_layers(
    layers: Iterable[list[int]], parameters: NamedParameters, full_bytes: int, full_count: int
) -> list[list[int]]:
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
    """A buffer that holds the gradients of a bucket, which are views of it, and notes.

    Notes are additional numbers that ranks add up along with the gradients.
    """

    def __init__(
        self,
        places: Sequence[int],
        parameters: NamedParameters,
        *,
        num_notes: int = 0,
        multiple_of: int = 1,
    ) -> None:
        """Create the buffer.

        num_notes: number of additional elements.
        multiple_of: the length of the buffer is rounded up to a multiple of this.
        """
        tensors = [parameters[place][1] for place in places]
        sizes = [tensor.numel() for tensor in tensors]
        used = sum(sizes)
        length = -(-(used + num_notes) // multiple_of) * multiple_of
        self.places = list(places)
        """The indices of the bucket's parameters."""
        like = tensors[0] if tensors else parameters[0][1]
        self.buffer = torch.zeros(length, dtype=like.dtype, device=like.device)
        self.gradients = self.buffer[:used]
        """The gradients, [S]."""
        self.notes = self.buffer[used : used + num_notes]
        """The notes, [num_notes]."""
        flat = torch.split_with_sizes(self.gradients, sizes)
        self.views = [_view_like(part, of) for part, of in zip(flat, tensors, strict=True)]
        """P views of the buffer, in the shapes of the parameters."""


def _view_like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``flat`` in the shape of ``tensor``.

    If the tensor is in channels-last order, so is the result, because its gradients are, too.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    order = formats.get(tensor.dim())
    if order is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=order):
        return flat.view(tensor.shape)
    return flat.as_strided(tensor.shape, tensor.stride())


class BucketRound:
    """Sends buckets through the reductions, in the same order on all ranks.

    R + P notes (see `Bucket`) follow the gradients of the last bucket. Not thread-safe.
    """

    def __init__(
        self,
        plan: Sequence[Sequence[int]],
        parameters: NamedParameters,
        world: World,
        reductions: Sequence[Reduction],
    ) -> None:
        """Create the buckets; `plan` lists the parameter indices of each bucket."""
        self._world = world
        self._reductions = reductions
        *before, last = plan
        size = world.size
        self.buckets = [Bucket(places, parameters, multiple_of=size) for places in before]
        """All buckets, in order."""
        self.buckets.append(
            Bucket(last, parameters, num_notes=size + len(parameters), multiple_of=size)
        )
        self.bucket_of = {place: b for b, places in enumerate(plan) for place in places}
        """The index of each parameter's bucket."""
        self._all_used = torch.ones_like(self.buckets[-1].notes)
        self._all_used[:size] = 0
        self._waits: list[Callable[[], object]] = []
        self.num_sent = 0
        """Number of buckets sent."""

    @property
    def is_all_sent(self) -> bool:
        """Whether all buckets, including the last, have been sent."""
        return self.num_sent == len(self.buckets)

    @torch.no_grad()
    def send_next(self, arrived: Sequence[torch.Tensor | None], state: int, what: str) -> None:
        """Send the next bucket with the gradients that have arrived, by index.

        state: the state that this rank reports; what: the operation, for errors about lost ranks.
        """
        bucket = self.buckets[self.num_sent]
        _copy_gradients(bucket.views, [arrived[place] for place in bucket.places])
        if len(bucket.notes):
            self._write_notes(bucket.notes, arrived, state)
        reduction = self._reductions[self.num_sent % len(self._reductions)]
        self.num_sent += 1
        with self._world.naming_lost(what):
            self._waits.append(reduction.start(bucket.buffer))

    def wait(self, what: str) -> tuple[list[float], list[float]]:
        """Wait for all buckets, which then hold the sums.

        Return the state that each rank reported [R], and the number of ranks on which each
        parameter has a gradient [P]. Nothing is pending afterwards, even after an error.
        """
        failure: Exception | None = None
        for wait in self._waits:
            try:
                wait()
            except Exception as error:
                failure = failure or error
        self._waits = []
        self.num_sent = 0
        if failure is not None:
            with self._world.naming_lost(what):
                raise failure
        notes: list[float] = self.buckets[-1].notes.tolist()
        return notes[: self._world.size], notes[self._world.size :]

    def _write_notes(
        self, notes: torch.Tensor, arrived: Sequence[torch.Tensor | None], state: int
    ) -> None:
        """Fill the notes: the state of each rank [R], and which parameters have gradients [P].

        Other ranks' states are 0 here; the reduction adds them.
        """
        size = self._world.size
        notes.copy_(self._all_used)
        notes[self._world.rank] = state
        for place, gradient in enumerate(arrived):
            if gradient is None:
                notes[size + place] = 0


def _copy_gradients(views: list[torch.Tensor], gradients: list[torch.Tensor | None]) -> None:
    """Copy the gradients into the views, with zeros for missing gradients."""
    there = [gradient for gradient in gradients if gradient is not None]
    if len(there) == len(views):
        torch._foreach_copy_(views, there)
        return
    for view, gradient in zip(views, gradients, strict=True):
        if gradient is None:
            view.zero_()
        else:
            view.copy_(gradient)
