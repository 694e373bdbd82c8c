"""Sums of a tensor over all ranks: the same bits on each, started now and waited for later.

Letters: R ranks, L ranks of a node, S bytes of the tensor.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.traffic import Traffic, Transfer
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError, InternalError

__all__ = ["Reduction", "make_reductions"]

_log = logging.getLogger("sparsefleet.collective")


class Reduction(ABC):
    """Sums one tensor after the other. All ranks must start the same ones in the same order."""

    @abstractmethod
    def start(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Begins to replace ``tensor`` by the sum over all ranks; the result waits for the end.

        tensor: contiguous, one dimension, its length a multiple of R; not to be touched meanwhile.
        """

    @abstractmethod
    def groups(self) -> list[dist.ProcessGroup]:
        """Those that it alone uses."""

    def close(self) -> None:
        """Ends threads; what was started must have been waited for."""
        return


class _RingReduction(Reduction):
    """What the library's all-reduce does: right where the order of a sum does not matter."""

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
            raise InternalError("torch.distributed took an all-reduce from outside its group")
        wait: Callable[[], object] = work.wait
        return wait


class _ThreadReduction(Reduction):
    """Made of several calls, which a thread of its own makes one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collective-ring")

    def start(self, tensor: torch.Tensor) -> Callable[[], object]:
        return self._thread.submit(self.reduce, tensor).result

    @abstractmethod
    def reduce(self, tensor: torch.Tensor) -> None:
        """Replaces ``tensor`` by the sum before it returns."""

    def close(self) -> None:
        self._thread.shutdown()


class _OrderedReduction(_ThreadReduction):
    """Each rank adds up a part of the tensor, always in the order of ranks.

    With more than two ranks a ring adds in an order that depends on where in the tensor an
    element lies, so that other buckets would give other bits. Sends as much as a ring, in 2 steps
    instead of 2 (R - 1).
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
        # Straight to each rank; an all-gather would pass it on from rank to rank.
        dist.all_to_all_single(tensor, parts, group=self._group)

    def _room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory that stays: new pages in every step would cost as much time as the sums."""
        if self._scratch.dtype != tensor.dtype or len(self._scratch) < len(tensor):
            self._scratch = torch.empty_like(tensor)
        return self._scratch[: len(tensor)]


class _HierarchicalReduction(_ThreadReduction):
    """Inside each node to its first rank, among those, and back: S between nodes, not S * L."""

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
    """Counts what this rank sends to which."""

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
    """One for each ring. All ranks must call it, with the same strategy; none if R is 1."""
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
            f"{ranks_per_node}; set ranks_per_node to a number that divides them"
        )
    return True


def _flat(world: World, ranks: list[int], count: _Count) -> Reduction | None:
    """None on ranks outside; they must call it all the same."""
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
        raise InternalError(f"rank {world.rank} belongs to no node of {ranks_per_node} ranks")
    return _HierarchicalReduction(*own, across, count)
