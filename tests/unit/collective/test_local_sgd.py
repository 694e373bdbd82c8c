"""When ranks average their parameters, and the resulting values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses

from sparsefleet.collective import LocalSgdConfig, World
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.reduction import Traffic
from sparsefleet.errors import ConfigError


def walk(world: World, fields: dict[str, Any], step_counts: list[int]) -> dict[str, Any]:
    """Each step adds rank + 1; ranks make different numbers of steps."""
    weights = torch.zeros(3), torch.zeros(2, dtype=torch.float64)
    traffic = Traffic()
    local = LocalSgd(
        [("a", weights[0]), ("b", weights[1])], world, LocalSgdConfig(**fields), traffic=traffic
    )
    met, calls = [], []
    for _ in range(step_counts[world.rank]):
        for weight in weights:
            weight += world.rank + 1
        met.append(local.step(loss=1.0))
        calls.append(traffic.calls)
    while local.shadow():
        continue
    local.close()
    return {
        "met": met,
        "calls": calls,
        "meetings": local.num_meetings,
        "values": [*weights[0].tolist(), *weights[1].tolist()],
    }


def test_ranks_meet_every_so_many_steps_and_send_nothing_in_between(ranks: RankProcesses) -> None:
    first, second = ranks.run(walk, 2, {"steps": 3}, [7, 7])
    assert first["met"] == second["met"] == [False, False, True, False, False, True, False]
    assert first["calls"] == [0, 0, 2, 2, 2, 4, 4]  # two, one for each dtype
    assert first["values"] == second["values"] == [7 * 1.5] * 5  # what was left was averaged too


def test_a_rank_without_data_counts_until_its_last_step(ranks: RankProcesses) -> None:
    for found in ranks.run(walk, 3, {"steps": 2}, [4, 1, 4]):
        # Steps add 1, 2 and 3: first two steps of ranks 0 and 2 and one of rank 1, then ranks 0 and
        # 2 only.
        assert found["values"] == pytest.approx([(2 + 2 + 6) / 3 + (2 + 6) / 2] * 5)
        assert found["meetings"] == 2


def test_nothing_is_averaged_while_it_warms_up(ranks: RankProcesses) -> None:
    for found in ranks.run(walk, 2, {"steps": 1, "warm_steps": 2}, [3, 3]):
        assert found["met"] == [False, False, True]


def adapt(world: World, losses: list[list[float]]) -> dict[str, Any]:
    config = LocalSgdConfig(steps=4, adaptive=True, max_steps=8)
    local = LocalSgd([("a", torch.zeros(1))], world, config)
    intervals = []
    for loss in losses[world.rank]:
        if local.step(loss=torch.tensor(loss)):
            intervals.append(local.interval)
    state = local.state_dict()
    local.close()
    return {"intervals": intervals, "state": state}


def test_the_interval_follows_the_loss_of_all_ranks(ranks: RankProcesses) -> None:
    losses = [3.0] * 4 + [0.75] * 4 + [0.1] * 2 + [30.0]
    first, second = ranks.run(adapt, 2, [losses, [loss / 3 for loss in losses]])
    assert first == second
    # Mean 2 at first, then 0.5, 1/15 and 20: 4 * sqrt(loss / 2), but at most 8.
    assert first["intervals"] == [4, 2, 1, 8]
    assert first["state"] == {"steps": 11, "interval": 8, "first_loss": 2.0}


def test_losses_without_meaning_leave_the_interval_alone() -> None:
    local = LocalSgd([("a", torch.zeros(1))], World.join(), LocalSgdConfig(steps=2, adaptive=True))
    for loss in (float("nan"), 1.0, -1.0, -1.0):
        local.step(loss)
    assert local.interval == 2
    with pytest.raises(ConfigError, match="adaptive needs the loss"):
        local.step()


def test_a_schedule_resumes_where_its_state_was_taken() -> None:
    weight = torch.zeros(1)
    first = LocalSgd([("a", weight)], World.join(), LocalSgdConfig(steps=2, warm_steps=3))
    for _ in range(2):
        first.step()
    second = LocalSgd([("a", weight)], World.join(), LocalSgdConfig(steps=2, warm_steps=3))
    second.load_state_dict(first.state_dict())
    expected = [False, False, True]
    assert [first.step() for _ in range(3)] == [second.step() for _ in range(3)] == expected
