"""Sums of a tensor over all ranks, bit-identical on every rank, and the traffic they cause.

In shapes, R is the number of ranks, L the number of ranks per node, and S the size of the tensor in
bytes.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError, InternalError, ShapeError

__all__ = ["Reduction", "Traffic", "Transfer", "gather_gradient", "gather_rows", "make_reductions"]
_log = logging.getLogger("sparsefleet.collective")


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective call, as seen by this rank."""

    kind: str
    """"all_reduce", "reduce", "broadcast" or "all_gather"."""

    payload_bytes: int
    """The size of the tensor, equal on all ranks."""

    sent_bytes: int
    """Number of bytes that this rank sent for the call."""

    sent_across_nodes_bytes: int
    """The part of `sent_bytes` that went to other nodes."""


class Traffic:
    """Counts the bytes that a rank sends. Thread-safe.

    >>> traffic = Traffic()
    >>> traffic.count(Transfer(kind="reduce", payload_bytes=8, sent_bytes=8,
    ...                        sent_across_nodes_bytes=0))
    >>> traffic.calls, traffic.sent_bytes, traffic.calls_of("reduce")
    (1, 8, 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._sent_bytes = 0
        self._across_bytes = 0
        self._listeners: list[Callable[[Transfer], None]] = []

    @property
    def calls(self) -> int:
        """Number of collective calls of all kinds."""
        with self._lock:
            return sum(self._calls.values())

    @property
    def sent_bytes(self) -> int:
        """Number of bytes that this rank sent."""
        with self._lock:
            return self._sent_bytes

    @property
    def sent_across_nodes_bytes(self) -> int:
        """Number of bytes that this rank sent to ranks on other nodes."""
        with self._lock:
            return self._across_bytes

    def calls_of(self, kind: str) -> int:
        """Return the number of calls of one kind."""
        with self._lock:
            return self._calls.get(kind, 0)

    def listen(self, listener: Callable[[Transfer], None]) -> None:
        """Call ``listener`` for every transfer from now on, on the thread that counts it."""
        with self._lock:
            self._listeners.append(listener)

    def count(self, transfer: Transfer) -> None:
        """Count the calls and bytes of one transfer."""
        with self._lock:
            kind = transfer.kind
            self._calls[kind] = self._calls.get(kind, 0) + 1
            self._sent_bytes += transfer.sent_bytes
            self._across_bytes += transfer.sent_across_nodes_bytes
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(transfer)


# Sparse gradients are gathered on every rank, since they have no common shape in which to sum them.
#
# In shapes, N is the number of rows of one rank, M of all ranks, and D the row width.


def gather_rows(
    world: World, keys: torch.Tensor, rows: torch.Tensor, *, traffic: Traffic | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys [M] and rows [M, D] of all ranks in rank order, equal on all ranks.

    Each rank passes keys [N] and rows [N, D]; N may differ between ranks and may be 0, and M is the
    sum over ranks. All ranks must call it. A key may come from several ranks; the caller sums the
    rows of each key and divides by the number of ranks.

    >>> gather_rows(World.join(), torch.tensor([7]), torch.ones(1, 2))
    (tensor([7]), tensor([[1., 1.]]))
    """
    if keys.dim() != 1 or rows.dim() != 2 or len(keys) != len(rows):
        raise ShapeError(
            f"gather_rows needs keys [N] and rows [N, D], got shapes {tuple(keys.shape)} and "
            f"{tuple(rows.shape)}"
        )
    if world.size == 1:
        return keys, rows
    with world.naming_lost("gathering rows of all ranks"), torch.no_grad():
        counts = _gather(world, torch.tensor([len(keys)], device=keys.device), [1] * world.size)
        lengths: list[int] = counts.tolist()
        found = _gather(world, keys, lengths), _gather(world, rows, lengths)
    if traffic is not None:
        _count(world, lengths, (keys, rows), traffic)
    return found


def gather_gradient(
    world: World,
    gradient: torch.Tensor | None,
    parameter: torch.Tensor,
    *,
    traffic: Traffic | None = None,
) -> torch.Tensor:
    """Return the sum over ranks of a sparse gradient of ``parameter`` [K, D].

    The result is a coalesced sparse tensor. All ranks must call it; passing None counts
    as a gradient without rows.
    """
    if gradient is None:
        keys = torch.zeros(0, dtype=torch.int64, device=parameter.device)
        rows = parameter.new_zeros((0, *parameter.shape[1:]))
    else:
        own = gradient.coalesce()
        keys, rows = own.indices()[0], own.values()
    keys, rows = gather_rows(world, keys, rows.detach(), traffic=traffic)
    return torch.sparse_coo_tensor(keys[None], rows, parameter.shape).coalesce()


def _gather(world: World, own: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Concatenate the tensors of all ranks; shorter tensors are padded for the transfer."""
    longest = max(lengths)
    if not longest:
        return own.clone()
    padded = own.new_zeros((longest, *own.shape[1:]))
    padded[: len(own)] = own.detach()
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=world.group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _count(
    world: World, lengths: list[int], parts: tuple[torch.Tensor, ...], traffic: Traffic
) -> None:
    width = sum(part.element_size() * (part.shape[1] if part.dim() > 1 else 1) for part in parts)
    sent = max(lengths) * width
    others = world.size - 1
    traffic.count(
        Transfer(
            kind="all_gather",
            payload_bytes=sent,
            sent_bytes=sent * others,
            sent_across_nodes_bytes=sent * (world.size - world.ranks_per_node),
        )
    )


class Reduction(ABC):
    """Sums tensors over ranks. All ranks must start the same reductions in the same order."""

    @abstractmethod
    def start(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Start replacing ``tensor`` with the sum over all ranks; return a function that waits.

        tensor: contiguous and one-dimensional, with a length that is a multiple of R. Do not touch
        it before that function has returned.
        """

    @abstractmethod
    def groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that are used only by this reduction."""

    def close(self) -> None:
        """Stop the reduction's threads. REQUIRES: no reduction is pending."""
        return


class _RingReduction(Reduction):
    """torch.distributed's all-reduce, used if the order of summation does not matter."""

    def __init__(self, group: dist.ProcessGroup, ranks: list[int], count: _Count) -> None:
        self._group = group
        self._count = count
        self._share = 2 * (len(ranks) - 1) / len(ranks)
        self._next = ranks[(ranks.index(count.rank) + 1) % len(ranks)]

    def groups(self) -> list[dist.ProcessGroup]:
        return [self._group]

    def start(self, tensor: torch.Tensor) -> Callable[[], object]:
        sent = int(tensor.nbytes * self._share)
        self._count("all_reduce", tensor, {self._next: sent})
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        if work is None:
            raise InternalError("torch.distributed accepted an all-reduce from outside the group")
        wait: Callable[[], object] = work.wait
        return wait


class _ThreadReduction(Reduction):
    """A reduction that makes several calls in sequence, on a background thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collective-ring")

    def start(self, tensor: torch.Tensor) -> Callable[[], object]:
        return self._thread.submit(self.reduce, tensor).result

    @abstractmethod
    def reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` with the sum."""

    def close(self) -> None:
        self._thread.shutdown()


class _OrderedReduction(_ThreadReduction):
    """Makes each rank sum a part of the tensor, always in rank order.

    With more than two ranks, the order in which a ring adds depends on an element's position in the
    tensor, so different buckets would give slightly different results. This reduction sends the
    same number of bytes as a ring, in 2 steps instead of 2 (R - 1).
    """

    def __init__(self, group: dist.ProcessGroup, ranks: list[int], count: _Count) -> None:
        super().__init__()
        self._group = group
        self._ranks = ranks
        self._count = count
        self._scratch = torch.empty(0)

    def groups(self) -> list[dist.ProcessGroup]:
        return [self._group]

    def reduce(self, tensor: torch.Tensor) -> None:
        part = tensor.nbytes // len(self._ranks)
        others = {rank: 2 * part for rank in self._ranks if rank != self._count.rank}
        self._count("all_reduce", tensor, others)
        parts = self._room_for(tensor)
        dist.all_to_all_single(parts, tensor, group=self._group)
        first, *rest = parts.chunk(len(self._ranks))
        for other in rest:
            first.add_(other)
        for other in rest:
            other.copy_(first)
        # Sent directly to each rank; an all-gather would pass it along from rank to rank.
        dist.all_to_all_single(tensor, parts, group=self._group)

    def _room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a reused buffer.

        Allocating fresh pages in every step would cost as much as the summation.
        """
        if self._scratch.dtype != tensor.dtype or len(self._scratch) < len(tensor):
            self._scratch = torch.empty_like(tensor)
        return self._scratch[: len(tensor)]


class _HierarchicalReduction(_ThreadReduction):
    """Sums within each node, then among the first ranks of the nodes, and broadcasts the result.

    This sends S bytes between nodes instead of S * L.
    """

    def __init__(
        self,
        node: dist.ProcessGroup,
        node_ranks: list[int],
        across: Reduction | None,
        count: _Count,
    ) -> None:
        super().__init__()
        self._node = node
        self._ranks = node_ranks
        self._across = across
        self._count = count

    def groups(self) -> list[dist.ProcessGroup]:
        return [self._node, *(self._across.groups() if self._across is not None else [])]

    def reduce(self, tensor: torch.Tensor) -> None:
        leader = self._ranks[0]
        others = [rank for rank in self._ranks if rank != leader]
        is_leader = self._count.rank == leader
        self._count("reduce", tensor, {} if is_leader else {leader: tensor.nbytes})
        dist.reduce(tensor, leader, group=self._node)
        if self._across is not None:
            self._across.start(tensor)()
        self._count("broadcast", tensor, dict.fromkeys(others, tensor.nbytes) if is_leader else {})
        dist.broadcast(tensor, leader, group=self._node)

    def close(self) -> None:
        super().close()
        if self._across is not None:
            self._across.close()


class _Count:
    """Counts the bytes that this rank sends to each other rank."""

    def __init__(self, traffic: Traffic, rank: int, ranks_per_node: int) -> None:
        self.rank = rank
        self._traffic = traffic
        self._ranks_per_node = ranks_per_node

    def __call__(self, kind: str, tensor: torch.Tensor, sent_to: dict[int, int]) -> None:
        node = self.rank // self._ranks_per_node
        across = [sent for rank, sent in sent_to.items() if rank // self._ranks_per_node != node]
        self._traffic.count(
            Transfer(
                kind=kind,
                payload_bytes=tensor.nbytes,
                sent_bytes=sum(sent_to.values()),
                sent_across_nodes_bytes=sum(across),
            )
        )


def make_reductions(
    world: World, strategy: CollectiveStrategy, traffic: Traffic
) -> list[Reduction]:
    """Return one reduction per ring, or an empty list if R is 1.

    All ranks must call it with the same strategy.
    """
    if world.size == 1:
        return []
    ranks_per_node = strategy.ranks_per_node or world.ranks_per_node
    count = _Count(traffic, world.rank, ranks_per_node)
    if _is_hierarchical(world.size, ranks_per_node, strategy):
        return [_hierarchical(world, ranks_per_node, count) for _ in range(strategy.num_rings)]
    everyone = list(range(world.size))
    made = [_flat(world, everyone, count) for _ in range(strategy.num_rings)]
    return [reduction for reduction in made if reduction is not None]


def _is_hierarchical(size: int, ranks_per_node: int, strategy: CollectiveStrategy) -> bool:
    if not strategy.hierarchical:
        return False
    if size <= ranks_per_node:
        _log.warning(
            "all %d ranks are on one node: hierarchical has no effect (ranks_per_node is %d)",
            size,
            ranks_per_node,
        )
        return False
    if size % ranks_per_node:
        raise ConfigError(
            f"CollectiveStrategy.hierarchical: {size} ranks cannot be divided into nodes of "
            f"{ranks_per_node}; set ranks_per_node to a divisor of {size}"
        )
    return True


def _flat(world: World, ranks: list[int], count: _Count) -> Reduction | None:
    """Return a reduction over some ranks; all other ranks must also call it and get None."""
    group = world.new_group(ranks)
    if group is None:
        return None
    if len(ranks) == 2 or world.device.type != "cpu":
        return _RingReduction(group, ranks, count)
    return _OrderedReduction(group, ranks, count)


def _hierarchical(world: World, ranks_per_node: int, count: _Count) -> Reduction:
    own: tuple[dist.ProcessGroup, list[int]] | None = None
    for first in range(0, world.size, ranks_per_node):
        ranks = list(range(first, first + ranks_per_node))
        group = world.new_group(ranks)
        if group is not None:
            own = group, ranks
    across = _flat(world, list(range(0, world.size, ranks_per_node)), count)
    if own is None:
        raise InternalError(f"rank {world.rank} is not in any node of {ranks_per_node} ranks")
    return _HierarchicalReduction(*own, across, count)
