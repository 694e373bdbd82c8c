"""Workers with real servers, all inside the test process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.fleet_workers import fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.fleet import Fleet
from sparsefleet.modes import GeoConfig
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

DEADLINE_S = 60.0
ADAGRAD = optim.Adagrad(lr=0.1)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    torch.manual_seed(0)
    with NativeServers(2) as running:
        yield running


def worker(
    servers: NativeServers,
    index: int,
    num_workers: int,
    model: nn.Module | None = None,
    optimizer: optim.Optimizer = ADAGRAD,
    **options: Any,
) -> Trainer:
    fleet = fleet_of(servers, index, num_workers)
    options.setdefault("config", QUIET)
    return Trainer(model or Clicks(), BCE, optimizer, fleet=fleet, **options)


def as_workers(servers: NativeServers, job: Callable[[Trainer, int], Any], **options: Any) -> list:
    """Run a job in two workers with two threads each; return what each returns."""

    def run(index: int) -> Any:
        with worker(servers, index, 2, threads=2, **options) as trainer:
            return job(trainer, index)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, index) for index in range(2)]
        return [future.result(DEADLINE_S) for future in running]


def uneven(index: int, seed: int = 0) -> list[Any]:
    """Return the batches of a worker: worker 1 has more than worker 0, and an odd number for its
    threads.
    """
    batches = clicks(20, seed=seed)
    return batches[:7] if index == 0 else batches[7:]


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [
        ("sync", ADAGRAD),
        ("half_async", ADAGRAD),
        ("async", ADAGRAD),
        ("hybrid", ADAGRAD),
        (GeoConfig(push_interval_steps=5), optim.SGD(lr=2.0)),
    ],
    ids=["sync", "half_async", "async", "hybrid", "geo"],
)
def test_workers_with_uneven_data_train_and_evaluate_together(
    mode: Any, optimizer: optim.Optimizer, servers: NativeServers
) -> None:
    def job(trainer: Trainer, index: int) -> tuple[float, dict[str, float]]:
        history = trainer.fit(uneven(index), epochs=4, validation=uneven(index, seed=1))
        trainer.distributed.meeting.barrier()
        assert history.last.steps == (7, 13)[index]
        figures = trainer.evaluate(uneven(index, seed=1))
        return history.epochs[0].loss, figures

    (first, figures), (_, others) = as_workers(servers, job, mode=mode, optimizer=optimizer)
    assert figures == others  # bit for bit
    assert figures["auc"] > 0.85
    assert figures["loss"] < first


@pytest.mark.parametrize("wire_dtype", ["float32", "bf16"])
def test_a_worker_of_another_host_may_exchange_16_bit_numbers(
    wire_dtype: Any, servers: NativeServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRANSPORT", "tls")  # instead of shared memory
    config = TrainerConfig(quiet=True, wire_dtype=wire_dtype)
    model = Clicks()
    with worker(servers, 0, 1, model, mode="sync", config=config) as trainer:
        trainer.fit(clicks(20), epochs=4)
        figures = trainer.evaluate(clicks(20, seed=1))
        weights = model.head.weight.detach().clone()
    assert figures["auc"] > 0.85
    has_16_bits = bool((weights.view(torch.int32) & 0xFFFF == 0).all())
    assert has_16_bits == (wire_dtype == "bf16")


def test_collective_workers_set_rows_on_servers_exactly(
    servers: NativeServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRANSPORT", "tls")
    monkeypatch.setenv("SPARSEFLEET_WIRE_DTYPE", "bf16")
    with worker(servers, 0, 1, Clicks(), mode="collective") as trainer:
        trainer.fit(clicks(2))
        store, table = trainer.distributed.store, next(iter(trainer.distributed.store.specs))
        rows = store.pull(table, next(store.rows(table)).keys)
    assert (rows.view(np.int32) & 0xFFFF != 0).any()
    with pytest.raises(ConfigError, match=r"'collective' does not support wire_dtype='bf16'"):
        worker(servers, 0, 1, Clicks(), mode="collective", config=TrainerConfig(wire_dtype="bf16"))


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
    with Trainer(Clicks(), BCE, ADAGRAD, config=QUIET, fleet=Fleet()) as trainer:
        trainer.load(tmp_path / "model")
        assert torch.equal(trainer.predict(clicks(3, seed=2)), first)


def test_async_with_servers_is_what_one_gets_without_a_word(servers: NativeServers) -> None:
    with worker(servers, 0, 1) as trainer:
        history = trainer.fit(clicks(), epochs=2)
        assert trainer.distributed.mode.name == "async"
        assert trainer.distributed.mode.stats().steps == 24
    assert history.last.loss < history.epochs[0].loss


def test_lookups_of_a_batch_are_one_request_in_evaluation_too(servers: NativeServers) -> None:
    class TwoColumns(Clicks):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.rows(ids[:, :1]) + self.rows(ids[:, 1:])).squeeze(1)

    with worker(servers, 0, 1, model=TwoColumns()) as trainer:
        trainer.evaluate(clicks(1))  # the first batch shows which ids go where
        pulls: list[bool] = []
        pull = trainer.distributed.store.pull_many

        def counting(*arguments: Any, **options: Any) -> Any:
            pulls.append(options.get("train", True))
            return pull(*arguments, **options)

        trainer.distributed.store.pull_many = counting  # type: ignore[method-assign]
        trainer.predict(clicks(6))
    assert pulls.count(False) == 6


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_worker_may_begin_its_next_epoch_while_another_is_in_the_one_before(
    mode: str, servers: NativeServers
) -> None:
    def job(trainer: Trainer, index: int) -> list[int]:
        return [epoch.steps for epoch in trainer.fit(uneven(index), epochs=4).epochs]

    assert as_workers(servers, job, mode=mode) == [[7] * 4, [13] * 4]


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_workers_that_wait_for_a_failed_one_end_with_an_error_that_names_it(
    mode: str, servers: NativeServers
) -> None:
    class MissingError(Exception):
        pass

    def batches_of(index: int) -> Iterator[Any]:
        for number, batch in enumerate(clicks(20)):
            if index == 0 and number == 5:
                raise MissingError("features")
            yield batch

    def job(trainer: Trainer, index: int) -> BaseException:
        try:
            trainer.fit(lambda: batches_of(index))
        except (MissingError, SparseFleetError) as error:
            return error
        raise AssertionError("trained without the other")

    failed, waiting = as_workers(servers, job, mode=mode)
    assert isinstance(failed, MissingError)
    assert re.search("worker.0", str(waiting))


class WithBuffers(Clicks):
    """Has buffers of several types, which its output depends on."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("order", torch.randperm(4, generator=generator))
        self.register_buffer("shown", torch.rand(4, generator=generator) < 0.5)
        self.register_buffer("scale", torch.rand(4, generator=generator, dtype=torch.float64))
        self.register_buffer("lowest", torch.tensor([-float("inf"), float(seed)]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)[:, self.order] * self.shown * self.scale.float()
        return self.head(rows).squeeze(1).clamp_min(self.lowest[0])


def test_buffers_of_all_types_are_the_first_workers(servers: NativeServers) -> None:
    models = [WithBuffers(seed=1), WithBuffers(seed=2)]

    def run(index: int) -> None:
        with worker(servers, index, 2, model=models[index]) as trainer:
            trainer.fit(clicks(2))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    for ours, theirs in zip(models[0].buffers(), models[1].buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_model_with_buffers_saved_alone_is_loaded_by_several(
    servers: NativeServers, tmp_path: Path
) -> None:
    with Trainer(WithBuffers(3), BCE, ADAGRAD, config=QUIET, fleet=Fleet()) as trainer:
        trainer.fit(clicks())
        trainer.save(tmp_path / "model")
        wanted = trainer.predict(clicks(2))

    def run(index: int) -> torch.Tensor:
        with worker(servers, index, 2, model=WithBuffers(index)) as trainer:
            trainer.load(tmp_path / "model")
            return trainer.predict(clicks(2))

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, range(2)):
            assert torch.equal(found, wanted)


def test_lookups_of_training_are_one_pull_though_evaluation_came_first(
    servers: NativeServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(Clicks):
        def __init__(self) -> None:
            super().__init__()
            self.more = SparseEmbeddingBag("more", 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            rows = self.rows(ids)
            return self.head(rows + self.more(ids) if self.training else rows).squeeze(1)

    with worker(servers, 0, 1, model=Two(), mode="sync") as trainer:
        trainer.evaluate(clicks(2))
        trainer.fit(clicks(2))
        pulls = []
        mode = trainer.distributed.mode
        pull = mode.pull
        monkeypatch.setattr(
            mode, "pull", lambda keys, **how: pulls.append(keys) or pull(keys, **how)
        )
        trainer.fit(clicks(5))
    # Only the first batch pulls rows; those of the others come with the previous batch's gradients.
    assert [sorted(keys) for keys in pulls] == [["ads", "more"]]


def test_export_that_cannot_be_written_is_reported_on_every_worker(
    servers: NativeServers, tmp_path: Path
) -> None:
    place = tmp_path / "in the way"
    place.write_text("a file")

    def job(trainer: Trainer, index: int) -> str:
        trainer.fit(uneven(index))
        with pytest.raises(SparseFleetError) as told:
            trainer.export(place, clicks(1)[0], onnx=False)
        return str(told.value)

    told = as_workers(servers, job)

    assert all("in the way" in text for text in told)
    assert "worker 0" in told[1]
