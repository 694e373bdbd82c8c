"""Workers with real servers, all inside the test process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks

from sparsefleet import optim
from sparsefleet.fleet import Fleet, Role, UserDefinedRoleMaker
from sparsefleet.train import Trainer

DEADLINE_S = 60.0


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    torch.manual_seed(0)
    with NativeServers(2) as running:
        yield running


def worker(servers: NativeServers, index: int, num_workers: int, **options: Any) -> Trainer:
    fleet = Fleet()
    fleet.init(
        UserDefinedRoleMaker(
            current_id=index,
            role=Role.WORKER,
            worker_num=num_workers,
            server_endpoints=servers.endpoints,
        )
    )
    return Trainer(Clicks(), BCE, optim.Adagrad(lr=0.1), config=QUIET, fleet=fleet, **options)


def as_workers(servers: NativeServers, job: Callable[[Trainer, int], Any], **options: Any) -> list:
    """What two workers, each with two threads, return of the job."""

    def run(index: int) -> Any:
        with worker(servers, index, 2, threads=2, **options) as trainer:
            return job(trainer, index)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, index) for index in range(2)]
        return [future.result(DEADLINE_S) for future in running]


def uneven(index: int, seed: int = 0) -> list[Any]:
    """Worker 1 has more batches than worker 0, and a number that its threads cannot halve."""
    batches = clicks(20, seed=seed)
    return batches[:7] if index == 0 else batches[7:]


@pytest.mark.parametrize("mode", ["half_async", "async"])
def test_workers_with_uneven_data_train_and_evaluate_together(
    mode: str, servers: NativeServers
) -> None:
    def job(trainer: Trainer, index: int) -> tuple[float, dict[str, float]]:
        history = trainer.fit(uneven(index), epochs=4, validation=uneven(index, seed=1))
        trainer.distributed.meeting.barrier()
        assert history.last.steps == (7, 13)[index]
        figures = trainer.evaluate(uneven(index, seed=1))
        return history.epochs[0].loss, figures

    (first, figures), (_, others) = as_workers(servers, job, mode=mode)
    assert figures == others  # to the bit
    assert figures["auc"] > 0.85
    assert figures["loss"] < first


def test_figures_of_two_workers_are_those_of_one_with_all_data(servers: NativeServers) -> None:
    def job(trainer: Trainer, index: int) -> tuple[dict[str, float], dict[str, float] | None]:
        trainer.fit(uneven(index))
        trainer.distributed.meeting.barrier()
        together = trainer.evaluate(uneven(index, seed=1))
        whole = clicks(20, seed=1) if index == 0 else []
        return together, trainer.evaluate(whole)

    (together, alone), _ = as_workers(servers, job, mode="async")
    assert alone is not None
    assert together["auc"] == alone["auc"]
    assert together["log_loss"] == alone["log_loss"]
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-6)


def test_model_saved_by_two_workers_is_loaded_by_one(
    servers: NativeServers, tmp_path: Path
) -> None:
    def job(trainer: Trainer, index: int) -> torch.Tensor:
        trainer.fit(uneven(index))
        trainer.save(tmp_path / "model")
        return trainer.predict(clicks(3, seed=2))

    first, second = as_workers(servers, job, mode="async")
    assert torch.equal(first, second)
    with Trainer(Clicks(), BCE, optim.Adagrad(lr=0.1), config=QUIET, fleet=Fleet()) as trainer:
        trainer.load(tmp_path / "model")
        assert torch.equal(trainer.predict(clicks(3, seed=2)), first)


def test_async_with_servers_is_what_one_gets_without_a_word(servers: NativeServers) -> None:
    with worker(servers, 0, 1) as trainer:
        history = trainer.fit(clicks(), epochs=2)
        assert trainer.distributed.mode.name == "async"
        assert trainer.distributed.mode.stats().steps == 24
    assert history.last.loss < history.epochs[0].loss
