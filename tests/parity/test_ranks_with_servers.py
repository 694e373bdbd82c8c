"""Ranks that exchange dense gradients among themselves while rows are on servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parity.test_trainer_in_ranks import (
    EPOCHS,
    STEPS,
    assert_close,
    click_batches,
    fit_alone,
    joined,
    make_trainer,
    trained,
)
from tests.support.rank_processes import RankProcesses
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig, World
from sparsefleet.fleet import Fleet, RoleInfo

STRATEGIES = {
    "plain": CollectiveStrategy(),
    "local_sgd": CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=2, steps=3)),
    "amp": CollectiveStrategy(amp=AmpConfig(dtype="bfloat16")),
}


def fit(
    world: World, endpoints: list[str], mode: str, strategy: str, counts: list[int], folder: str
) -> Any:
    """Train on servers; return what was learned, and the score on all ranks' data."""
    fleet = Fleet()
    role = RoleInfo(
        kind="worker",
        index=world.rank,
        worker_num=world.size,
        server_endpoints=tuple(endpoints),
    )
    fleet.init(role, world=world)
    options = {"mode": mode, "strategy": STRATEGIES[strategy]}
    with make_trainer("clicks", "sgd", fleet, **options) as trainer:
        data = click_batches(world.rank, counts[world.rank])
        history = trainer.fit(data, epochs=EPOCHS)
        figures = trainer.evaluate(click_batches(9, 1))
        found = trained(trainer)
        trainer.save(folder)
        trainer.load(folder)
        assert trained(trainer) == found
        losses = [epoch.loss for epoch in history.epochs]
        return {"trained": found, "figures": figures, "losses": losses}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(__name__) as processes:
        yield processes


def run(
    ranks: RankProcesses, folder: Path, mode: str, strategy: str, counts: list[int]
) -> list[Any]:
    with NativeServers(2) as servers:
        found = ranks.run(
            fit,
            2,
            servers.endpoints,
            mode,
            strategy,
            counts,
            str(folder / "saved"),
            environment={"SPARSEFLEET_JOB_KEY": JOB_KEY.decode()},
        )
    assert found[0]["trained"] == found[1]["trained"]
    assert found[0]["figures"] == found[1]["figures"]
    return found


@pytest.mark.parametrize("counts", [[STEPS, STEPS], [STEPS, 2]])
def test_rows_step_with_the_dense_parameters(
    ranks: RankProcesses, tmp_path: Path, counts: list[int]
) -> None:
    found = run(ranks, tmp_path, "collective", "plain", counts)
    parts = [click_batches(0), click_batches(1, counts[1])]
    whole = joined([parts[0][: counts[1]], parts[1]]) + parts[0][counts[1] :]
    assert_close(found[0]["trained"], fit_alone("clicks", "sgd", whole)[1])


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [("hybrid", "plain"), ("collective", "local_sgd"), ("collective", "amp")],
)
def test_other_ways_of_rows_learn_and_end_alike(
    ranks: RankProcesses, tmp_path: Path, mode: str, strategy: str
) -> None:
    for each in run(ranks, tmp_path, mode, strategy, [STEPS, 3]):
        assert each["losses"][-1] < each["losses"][0]
