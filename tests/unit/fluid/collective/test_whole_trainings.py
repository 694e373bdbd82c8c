"""Complete training runs of ranks: files, check points, tests, ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import rank_programs
from tests.support.rank_processes import RankProcesses
from tests.unit.fluid.collective import whole_works


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(*rank_programs.PRELOAD) as processes:
        yield processes


def test_ranks_train_from_files_of_different_length(ranks: RankProcesses, tmp_path: Path) -> None:
    one, other = ranks.run(whole_works.train_from_files, 2, str(tmp_path))
    assert one["parameters"] == other["parameters"]
    steps_and_ends = 2 * (4 + 1)
    assert one["calls"] == other["calls"] == 2 * steps_and_ends


def test_an_overflow_of_one_rank_skips_the_step_of_all(ranks: RankProcesses) -> None:
    one, other = ranks.run(whole_works.train_in_half_with_recompute, 2)
    assert one["changes"] == [True, False, False, False, True]
    assert one["scales"] == [8.0, 8.0, 8.0, 6.4, 6.4]
    assert one == other


def test_ranks_resume_from_a_check_point_as_if_uninterrupted(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    for rank in ranks.run(whole_works.go_on_from_check_point, 2, str(tmp_path)):
        assert rank["parameters"] == rank["whole"]
        assert rank["next"] == 1


def test_every_pass_with_synchronised_norms_uses_the_same_groups(ranks: RankProcesses) -> None:
    one, other = ranks.run(whole_works.normalise_unevenly, 2)
    assert len({*one["groups"]}) == len({*other["groups"]}) == 1
    assert one["parameters"] == other["parameters"]


def test_a_rank_lost_within_synchronised_norms_is_named(ranks: RankProcesses) -> None:
    found = ranks.run(whole_works.lose_one_in_a_norm, 2, lost=(1,))
    assert found[0] == "gradients of sync_batch_norm: rank 1 is lost"


def test_a_rank_may_close_its_executor_and_another_not(ranks: RankProcesses) -> None:
    one, other = ranks.run(whole_works.end_twice, 2)
    assert one == other


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "collective", "collective_mode": "grad_allreduce"}]
)
def test_one_rank_evaluates_beside_the_training(
    ranks: RankProcesses, settings: dict[str, Any]
) -> None:
    one, other = ranks.run(whole_works.evaluate_alone, 2, settings)
    assert len(one["losses"]) == 3
    assert len({*one["losses"]}) == 1
    assert one["parameters"] == other["parameters"]
