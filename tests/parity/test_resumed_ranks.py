"""Training in ranks without servers is saved and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parity.test_trainer_in_ranks import (
    MODELS,
    make_trainer,
    trained,
)
from tests.support.rank_processes import RankProcesses

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig, World
from sparsefleet.fleet import Fleet
from sparsefleet.train import CheckpointConfig

EPOCHS, STEPS, SAVED_AFTER = 2, 6, 4
STRATEGIES = {
    "plain": CollectiveStrategy(),
    "local_sgd": CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=1, steps=3)),
    "amp": CollectiveStrategy(amp=AmpConfig(dtype="bfloat16", incr_every_n_steps=2)),
}


def fit_saving(
    world: World, kind: str, strategy: str, folder: str, resume: str | None, counts: list[int]
) -> Any:
    """Train with a save in the middle of each epoch, resuming from `resume` if given."""
    fleet = Fleet()
    fleet.init(world=world)
    trainer = make_trainer(
        kind,
        "adam",
        fleet,
        mode="collective",
        strategy=STRATEGIES[strategy],
        checkpoints=CheckpointConfig(directory=folder, every_steps=SAVED_AFTER, keep=9),
        resume=resume,
        schedule=lambda step: 0.9**step,
    )
    with trainer:
        trainer.fit(MODELS[kind][2](world.rank, counts[world.rank]), epochs=EPOCHS)
        training = trainer.distributed.mode.training  # type: ignore[attr-defined]
        return {
            "trained": trained(trainer),
            "state": training.state_dict(),
            "rate": trainer.distributed.stepping.optimizer.param_groups[0]["lr"],  # type: ignore[union-attr]
        }


def load_and_score(world: World, kind: str, folder: str) -> Any:
    """Load a checkpoint with another number of ranks."""
    fleet = Fleet()
    fleet.init(world=world)
    with make_trainer(kind, "adam", fleet, mode="collective") as trainer:
        trainer.load(folder)
        return {"trained": trained(trainer), "figures": trainer.evaluate(MODELS[kind][2](5))}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(__name__) as processes:
        yield processes


@pytest.mark.parametrize(
    ("kind", "strategy", "counts"),
    [
        ("visits", "plain", [STEPS, STEPS]),
        ("visits", "plain", [STEPS, 2]),
        ("digits", "local_sgd", [STEPS, STEPS]),
        ("digits", "amp", [STEPS, STEPS]),
    ],
)
def test_a_training_resumes_from_a_save_as_if_uninterrupted(
    ranks: RankProcesses, tmp_path: Path, kind: str, strategy: str, counts: list[int]
) -> None:
    whole = ranks.run(fit_saving, 2, kind, strategy, str(tmp_path / "whole"), None, counts)
    saved = sorted(path.name for path in (tmp_path / "whole").glob("step-*"))
    first = tmp_path / "whole" / saved[0]
    again = ranks.run(fit_saving, 2, kind, strategy, str(tmp_path / "again"), str(first), counts)
    assert again == whole
    assert whole[0]["trained"] == whole[1]["trained"]


def save_or_go_on(world: World, strategy: str, folder: str) -> Any:
    """Trains and saves with LocalSGD; resumes from that with another strategy."""
    fleet = Fleet()
    fleet.init(world=world)
    options = {"mode": "collective", "strategy": STRATEGIES[strategy]}
    with make_trainer("digits", "adam", fleet, **options) as trainer:
        if strategy != "local_sgd":
            trainer.load(folder)
        trainer.fit(MODELS["digits"][2](world.rank, STEPS))
        trainer.save(folder)
        return trained(trainer)


def test_ranks_stay_alike_after_a_save_in_which_their_optimizers_differed(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    ranks.run(save_or_go_on, 2, "local_sgd", str(tmp_path))
    first, second = ranks.run(save_or_go_on, 2, "plain", str(tmp_path))
    assert first == second


def test_another_number_of_ranks_and_other_modes_resume_a_save(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    whole = ranks.run(fit_saving, 2, "clicks", "plain", str(tmp_path), None, [STEPS, STEPS])
    last = str(max(tmp_path.glob("step-*")))
    found = [ranks.run(load_and_score, size, "clicks", last) for size in (1, 3)]
    assert found[0][0]["trained"] == found[1][0]["trained"] == whole[0]["trained"]
    assert found[1][0] == found[1][1] == found[1][2]
    fleet = Fleet()
    fleet.init()
    with make_trainer("clicks", "adam", fleet, mode="local") as trainer:
        trainer.load(last)
        assert trained(trainer) == whole[0]["trained"]
        state = trainer.distributed.store.info("dense")
        assert state.size == sum(p.numel() for p in trainer.model.parameters())
