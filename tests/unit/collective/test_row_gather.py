"""Gathering the rows of all ranks on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses

from sparsefleet.collective import World
from sparsefleet.collective.reduction import Traffic, gather_rows
from sparsefleet.errors import ShapeError


def gather(world: World) -> dict[str, Any]:
    """Rank 0 has two rows, rank 1 none, rank 2 one; then nobody has any."""
    traffic = Traffic()
    count = [2, 0, 1][world.rank]
    keys = torch.arange(count) + 10 * world.rank
    rows = torch.full((count, 2), float(world.rank))
    found = gather_rows(world, keys, rows, traffic=traffic)
    nothing = gather_rows(world, keys[:0], rows[:0])
    return {
        "found": [part.tolist() for part in found],
        "nothing": [list(part.shape) for part in nothing],
        "sent": [traffic.sent_bytes, traffic.sent_across_nodes_bytes],
    }


def test_rows_follow_each_other_in_the_order_of_ranks(ranks: RankProcesses) -> None:
    for found in ranks.run(gather, 3, ranks_per_node=1):
        assert found["found"] == [[0, 1, 20], [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]]
        assert found["nothing"] == [[0], [0, 2]]
        # Two rows of 16 bytes, padded if necessary, to two other ranks; each rank is on its own
        # node.
        assert found["sent"] == [64, 64]


def test_keys_and_rows_must_match() -> None:
    with pytest.raises(ShapeError, match=r"got shapes \(2,\) and \(1, 3\)"):
        gather_rows(World.join(), torch.zeros(2), torch.zeros(1, 3))
