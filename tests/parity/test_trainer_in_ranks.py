"""A Trainer in several ranks without servers, compared with one process on the joined batches.

Letters: R ranks, B examples in a batch, F slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.rank_processes import RankProcesses
from torch import Tensor, nn

from sparsefleet.collective import CollectiveStrategy, LocalSgdConfig, World
from sparsefleet.engine.events import EvaluatedWithin
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.train import Callback, Trainer, TrainerConfig

Batch = tuple[Tensor, Tensor]

B, F, STEPS, EPOCHS = 8, 3, 5, 3
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


class Clicks(nn.Module):
    """Two tables, one of them looked up twice, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users = SparseEmbedding("users", 4, seed=1)
        self.ads = SparseEmbedding("ads", 4, seed=2)
        self.bags = SparseEmbeddingBag("ads", 4, mode="mean", seed=2)
        self.layers = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = [self.users(ids[:, 0]), self.ads(ids[:, 1]), self.bags(ids[:, 1:])]
        return self.layers(torch.cat(rows, dim=1)).squeeze(1)


class Visits(nn.Module):
    """Two tables, each looked up once, so that the first batch is summed like all others."""

    def __init__(self) -> None:
        super().__init__()
        self.users = SparseEmbedding("users", 4, seed=1)
        self.pages = SparseEmbeddingBag("pages", 4, mode="sum", seed=2)
        self.layer = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        rows = torch.cat([self.users(ids[:, 0]), self.pages(ids[:, 1:])], dim=1)
        return self.layer(rows).squeeze(1)


def digits_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def click_batches(seed: int, count: int = STEPS) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [
        (
            torch.from_numpy(rng.integers(0, 20, (B, F))),
            torch.from_numpy(rng.integers(0, 2, B).astype(np.float32)),
        )
        for _ in range(count)
    ]


def digit_batches(seed: int, count: int = STEPS) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [
        (
            torch.from_numpy(rng.random((B, 28, 28), np.float32)),
            torch.from_numpy(rng.integers(0, 10, B)),
        )
        for _ in range(count)
    ]


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "clicks": (Clicks, nn.BCEWithLogitsLoss(), click_batches),
    "visits": (Visits, nn.BCEWithLogitsLoss(), click_batches),
    "digits": (digits_model, nn.CrossEntropyLoss(), digit_batches),
}
STRATEGIES = {
    "plain": CollectiveStrategy(),
    "merged": CollectiveStrategy(gradient_merge_steps=5),
    "pairs": CollectiveStrategy(gradient_merge_steps=2),
    "local_sgd": CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=2, steps=3)),
}


def joined(parts: list[list[Batch]]) -> list[Batch]:
    """Batch i of all ranks as one."""
    return [
        (torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches]))
        for batches in zip(*parts, strict=True)
    ]


def trained(trainer: Trainer) -> dict[str, Any]:
    """Return all that was learned, bit for bit."""
    state = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}
    found = {name: values.tobytes().hex() for name, values in state.items()}
    for table in trainer.distributed.tables:
        rows = trainer.distributed.store.pull(table, np.arange(20), train=False)
        found[f"rows of {table}"] = rows.tobytes().hex()
    return found


def floats(found: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(bytes.fromhex(text), np.float32) for name, text in found.items()}


def make_trainer(kind: str, optimizer: str, fleet: Fleet, **options: Any) -> Trainer:
    torch.manual_seed(3 + fleet.worker_index() if fleet.is_initialized else 3)
    make, loss, _ = MODELS[kind]
    model = make()
    config = TrainerConfig(quiet=True)
    optimizer_ = OPTIMIZERS[optimizer](model.parameters())
    return Trainer(model, loss, optimizer_, config=config, fleet=fleet, **options)


def fit(world: World, kind: str, optimizer: str, strategy: str, counts: list[int]) -> Any:
    """Trains in one rank: epochs with as many batches as `counts` says; losses, and the end."""
    fleet = Fleet()
    fleet.init(world=world)
    options = {"mode": "collective", "strategy": STRATEGIES[strategy]}
    batches = MODELS[kind][2]
    with make_trainer(kind, optimizer, fleet, **options) as trainer:
        data = batches(world.rank, counts[world.rank])
        history = trainer.fit(data, epochs=EPOCHS, validation=batches(100 + world.rank, 2))
        return {
            "losses": [epoch.loss for epoch in history.epochs],
            "validation": [epoch.validation for epoch in history.epochs],
            "steps": trainer.distributed.mode.steps_of_schedule,
            "trained": trained(trainer),
        }


def fit_alone(kind: str, optimizer: str, data: list[Batch]) -> tuple[list[float], dict[str, Any]]:
    """The same in mode "local", in this process."""
    fleet = Fleet()
    fleet.init()
    with make_trainer(kind, optimizer, fleet, mode="local") as trainer:
        history = trainer.fit(data, epochs=EPOCHS)
        return [epoch.loss for epoch in history.epochs], trained(trainer)


def fit_with_validation(world: World, counts: list[int]) -> Any:
    """Trains in one rank, with validations within the epoch; worker 1 stops at the second."""

    class StopAtTwo(Callback):
        seen = 0

        def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
            del evaluated
            self.seen += 1
            if world.rank == 1 and self.seen == 2:
                trainer.stop()

    fleet = Fleet()
    fleet.init(world=world)
    torch.manual_seed(3)
    model = Clicks()
    with Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        config=TrainerConfig(quiet=True, validate_every_steps=2),
        mode="collective",
        fleet=fleet,
        callbacks=[StopAtTwo()],
    ) as trainer:
        data = click_batches(world.rank, counts[world.rank])
        history = trainer.fit(data, epochs=2, validation=click_batches(100 + world.rank, 2))
        return {
            "validation": [[each.step, each.figures["loss"]] for each in history.validations],
            "was_stopped": history.was_stopped,
            "trained": trained(trainer),
        }


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(__name__) as processes:
        yield processes


def assert_equal_on_all(found: list[Any]) -> None:
    for each in found[1:]:
        assert each["trained"] == found[0]["trained"]
        assert each["validation"] == found[0]["validation"]


def assert_close(found: dict[str, str], wanted: dict[str, str]) -> None:
    for name, values in floats(wanted).items():
        np.testing.assert_allclose(floats(found)[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("kind", "optimizer"), [("clicks", "adam"), ("digits", "sgd")])
def test_ranks_learn_what_one_process_does_on_the_joined_batches(
    ranks: RankProcesses, size: int, kind: str, optimizer: str
) -> None:
    found = ranks.run(fit, size, kind, optimizer, "plain", [STEPS] * size)
    parts = [MODELS[kind][2](seed) for seed in range(size)]
    losses, wanted = fit_alone(kind, optimizer, joined(parts))
    assert_equal_on_all(found)
    assert_close(found[0]["trained"], wanted)
    curves = np.mean([each["losses"] for each in found], axis=0)
    np.testing.assert_allclose(curves, losses, atol=1e-5)


def test_a_rank_with_less_data_holds_up_nobody(ranks: RankProcesses) -> None:
    found = ranks.run(fit, 2, "clicks", "adam", "plain", [STEPS, 2])
    assert_equal_on_all(found)
    assert [each["steps"] for each in found] == [EPOCHS * STEPS] * 2
    parts = [click_batches(0), click_batches(1, 2)]
    whole = joined([parts[0][:2], parts[1]]) + parts[0][2:]
    assert_close(found[0]["trained"], fit_alone("clicks", "adam", whole)[1])


@pytest.mark.parametrize(("counts", "steps"), [([9, 9], [4, 8]), ([9, 1], [3, 5])])
def test_ranks_validate_within_an_epoch_and_stop_together(
    ranks: RankProcesses, counts: list[int], steps: list[int]
) -> None:
    found = ranks.run(fit_with_validation, 2, counts)
    assert_equal_on_all(found)
    assert all(each["was_stopped"] for each in found)
    assert [step for step, _ in found[0]["validation"]] == steps


def test_a_rank_without_data_has_the_same_in_the_end(ranks: RankProcesses) -> None:
    found = ranks.run(fit, 2, "clicks", "sgd", "plain", [STEPS, 0])
    assert_equal_on_all(found)
    assert_close(found[0]["trained"], fit_alone("clicks", "sgd", click_batches(0))[1])


def test_merged_batches_are_one_step_with_their_mean(ranks: RankProcesses) -> None:
    found = ranks.run(fit, 2, "clicks", "sgd", "merged", [STEPS, STEPS])
    assert_equal_on_all(found)
    assert found[0]["steps"] == EPOCHS
    parts = [batch for rank in range(2) for batch in click_batches(rank)]
    whole = (torch.cat([ids for ids, _ in parts]), torch.cat([labels for _, labels in parts]))
    assert_close(found[0]["trained"], fit_alone("clicks", "sgd", [whole])[1])


def test_what_is_left_of_merged_batches_counts_once(ranks: RankProcesses) -> None:
    found = ranks.run(fit, 2, "clicks", "sgd", "pairs", [1, 4])
    assert_equal_on_all(found)
    (one,), four = click_batches(0, 1), click_batches(1, 4)
    fleet = Fleet()
    fleet.init()
    with make_trainer("clicks", "sgd", fleet, mode="local") as trainer:
        trainer.evaluate([one])  # makes it start
        for _ in range(EPOCHS):
            for batches in ([(one, 2), (four[0], 1), (four[1], 1)], [(four[2], 2), (four[3], 2)]):
                with trainer.distributed.step() as step:
                    losses = [
                        weight
                        / 4
                        * nn.functional.binary_cross_entropy_with_logits(trainer.model(ids), labels)
                        for (ids, labels), weight in batches
                    ]
                    step.backward(torch.stack(losses).sum())
        assert_close(found[0]["trained"], trained(trainer))


@pytest.mark.parametrize("counts", [[STEPS, STEPS], [STEPS, 3]])
def test_ranks_that_train_alone_for_some_steps_end_alike(
    ranks: RankProcesses, counts: list[int]
) -> None:
    found = ranks.run(fit, 2, "clicks", "adam", "local_sgd", counts)
    assert_equal_on_all(found)
    assert found[0]["losses"][-1] < found[0]["losses"][0]
