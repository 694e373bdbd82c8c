"""Mode "collective": what it refuses, how it steps alone, and how others learn of a failure."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.rank_processes import RankProcesses
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.collective import AmpConfig, CollectiveStrategy, World
from sparsefleet.collective.reduction import Traffic
from sparsefleet.errors import ConfigError, NonFiniteLossError, PeerLostError, WorkerError
from sparsefleet.fleet import Fleet
from sparsefleet.modes import CollectiveConfig, HybridConfig, SyncConfig
from sparsefleet.modes.collective_mode import GatheredRows
from sparsefleet.modes.mode_choice import with_strategy
from sparsefleet.nn import SparseEmbedding
from sparsefleet.store import AdmitByCount, TableSpec
from sparsefleet.train import Trainer, TrainerConfig

QUIET = TrainerConfig(quiet=True)
BATCH = (torch.ones(4, 2), torch.zeros(4, 1))


def fleet_of(world: World | None = None) -> Fleet:
    fleet = Fleet()
    fleet.init(world=world)
    return fleet


def trainer_of(model: nn.Module, fleet: Fleet, **options: Any) -> Trainer:
    settings = {"mode": "collective", "config": QUIET, **options}
    return Trainer(model, nn.MSELoss(), optim.SGD(lr=0.1), fleet=fleet, **settings)


class Rows(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.rows = SparseEmbedding("ads", 2, optimizer=optim.SGD(lr=0.1), **options)
        self.layer = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.rows(ids))


def test_a_strategy_makes_the_mode_collective_and_keeps_how_hybrid_sends_rows() -> None:
    strategy = CollectiveStrategy(num_rings=2)
    assert with_strategy(None, strategy) == CollectiveConfig(strategy=strategy)
    assert with_strategy("collective", strategy) == CollectiveConfig(strategy=strategy)
    rows = HybridConfig(max_merge=3)
    assert with_strategy(rows, strategy) == CollectiveConfig(strategy=strategy, rows=rows)
    assert with_strategy(SyncConfig(), None) == SyncConfig()


@pytest.mark.parametrize(
    ("mode", "strategy", "told"),
    [
        ("sync", CollectiveStrategy(), "strategy= needs mode 'collective' or 'hybrid'"),
        (CollectiveConfig(), CollectiveStrategy(), "already has a strategy"),
        ("collective", {"num_rings": 2}, r"must be a CollectiveStrategy\(...\)"),
    ],
)
def test_what_does_not_go_with_a_strategy_is_reported(mode: Any, strategy: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_strategy(mode, strategy)


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        (
            nn.Linear(2, 1),
            {"threads": 2},
            "one training thread per worker, got threads=2; start mo",
        ),
        (Rows(), {"mode": "hybrid", "strategy": CollectiveStrategy()}, "this job has none; start"),
        (
            nn.Linear(2, 1),
            {
                "strategy": CollectiveStrategy(sync_batch_norm=True),
                "config": TrainerConfig(quiet=True, non_finite_loss="skip"),
            },
            "non_finite_loss must be 'raise', got 'skip'",
        ),
    ],
)
def test_what_ranks_cannot_do_is_refused(model: nn.Module, options: Any, told: str) -> None:
    with (
        pytest.raises(ConfigError, match=told),
        trainer_of(model, fleet_of(), **options) as trainer,
    ):
        trainer.fit([BATCH])


def test_a_model_of_tables_alone_is_sent_to_servers() -> None:
    with pytest.raises(ConfigError, match="no dense parameters for workers to exchange"):
        trainer_of(nn.Sequential(SparseEmbedding("ads", 1)), fleet_of())


def test_alone_it_steps_as_torch_does_and_lets_nobody_else_step() -> None:
    torch.manual_seed(1)
    ours, theirs = nn.Linear(2, 1), nn.Linear(2, 1)
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    settings: dict[str, Any] = {"mode": "collective", "config": QUIET, "fleet": fleet_of()}
    with Trainer(ours, nn.MSELoss(), optimizer, **settings) as trainer:
        trainer.fit([BATCH] * 3)
        with pytest.raises(ConfigError, match="while fleet controls"):
            optimizer.step()
    plain = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(3):
        plain.zero_grad()
        nn.functional.mse_loss(theirs(BATCH[0]), BATCH[1]).backward()
        plain.step()
    assert torch.equal(ours.weight, theirs.weight)


def test_an_overflow_in_rows_skips_the_step_and_counts_against_the_scale() -> None:
    amp = AmpConfig(dtype="bfloat16", init_loss_scaling=2.0, decr_every_n_nan_or_inf=1)
    model = Rows(non_finite="raise")
    with trainer_of(model, fleet_of(), strategy=CollectiveStrategy(amp=amp)) as trainer:
        trainer.fit([(torch.tensor([7]), torch.zeros(1, 1))])
        before = model.layer.weight.detach().clone()
        mode = trainer.distributed.mode
        trainer.distributed.rejoin()
        with trainer.distributed.step() as step:
            rows = model.rows(torch.tensor([7]))
            step.backward((model.layer(torch.ones(1, 2)) + rows.sum() * torch.inf).mean())
        assert mode.training.num_skipped == 1  # type: ignore[attr-defined]
        assert torch.equal(model.layer.weight, before)
        trainer.distributed.leave()


def gather(world: World) -> Any:
    gathered = GatheredRows(world, {"ads": TableSpec(name="ads", dim=1)}, Traffic())
    keys = np.array([[1, 5], [5, 9], []][world.rank], np.uint64)
    rows = np.full((len(keys), 1), world.rank + 1, np.float32)
    keys, sums = gathered.sum({"ads": (keys, rows)} if len(keys) else {})["ads"]
    return [keys.tolist(), sums.ravel().tolist()]


def fail_on_one(world: World) -> Any:
    def batches() -> Iterator[Any]:
        yield BATCH
        if world.rank == 1:
            raise ValueError("no more of this")
        yield BATCH

    with trainer_of(nn.Linear(2, 1), fleet_of(world)) as trainer:
        try:
            trainer.fit(batches)
        except ValueError as error:
            return str(error)
        except PeerLostError as error:
            return str(error)
    return "nothing was raised"


def refuse_counting(world: World) -> Any:
    with trainer_of(Rows(admission=AdmitByCount(2)), fleet_of(world)) as trainer:
        try:
            trainer.fit([(torch.tensor([7]), torch.zeros(1, 1))])
        except ConfigError as error:
            return str(error)
    return "nothing was raised"


def fit_after_a_failure(world: World) -> Any:
    batch = (torch.ones(4, 2), torch.full((4, 1), torch.nan if world.rank else 0.0))
    trainer = trainer_of(nn.Linear(2, 1), fleet_of(world))
    with pytest.raises(NonFiniteLossError if world.rank else WorkerError):
        trainer.fit([batch])
    with pytest.raises(ConfigError) as found:
        trainer.fit([BATCH])
    trainer.close()
    return str(found.value)


def train_three_models(world: World) -> Any:
    fleet = fleet_of(world)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    strategy = CollectiveStrategy(sync_batch_norm=True)
    groups = []
    for _ in range(3):
        with trainer_of(model, fleet, strategy=strategy) as trainer:
            trainer.fit([BATCH] * (1 + world.rank), epochs=2)
            assert model[0].norm_group is trainer.distributed.placement._norm_group  # type: ignore[attr-defined]
            copy.deepcopy(model)  # as an export does
        assert world._connections is not None
        groups.append(len(world._connections._groups))
    return groups


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(__name__) as processes:
        yield processes


def test_rows_of_all_ranks_are_summed_by_key(ranks: RankProcesses) -> None:
    for keys, sums in ranks.run(gather, 3):
        assert dict(zip(keys, sums, strict=True)) == {1: 1.0, 5: 3.0, 9: 2.0}


def test_others_hear_of_a_failure_and_its_reason(ranks: RankProcesses) -> None:
    lost, failed = ranks.run(fail_on_one, 2)
    assert failed == "no more of this"
    assert "rank 1 failed: ValueError: no more of this" in lost


def test_after_a_failure_ranks_do_not_continue_each_by_itself(ranks: RankProcesses) -> None:
    for rank, told in enumerate(ranks.run(fit_after_a_failure, 2)):
        assert told.startswith(f"rank {rank} has left the other ranks, after an error")


def test_one_training_after_another_leaves_no_connections(ranks: RankProcesses) -> None:
    for groups in ranks.run(train_three_models, 2):
        assert groups[0] == groups[1] == groups[2]


def test_admission_by_count_is_refused_where_each_rank_counts(ranks: RankProcesses) -> None:
    for told in ranks.run(refuse_counting, 2):
        assert "table 'ads' has AdmitByCount, which counts keys per store" in told
