"""train_from_dataset of programs on servers: threads, passes, ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import ProgramWorker, feeds_of, ids_and_numbers, run_workers
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.fleet import StrategyFactory

EPOCHS = 3
STRATEGIES: dict[str, Any] = {
    "sync": StrategyFactory.create_sync_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "async": StrategyFactory.create_async_strategy,
    "geo": lambda: StrategyFactory.create_geo_strategy(update_frequency=3),
}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def write_files(folder: Path, rank: int, sizes: list[int]) -> list[str]:
    """One file of MultiSlot lines for each size."""
    names = []
    for number, size in enumerate(sizes):
        lines = []
        for feed in feeds_of(100 * rank + number, size, batch=1):
            x = " ".join(f"{value:.6f}" for value in feed["x"][0])
            lines.append(f"1 {feed['ids'][0, 0]} 3 {x} 1 {feed['y'][0, 0]:.6f}\n")
        path = folder / f"part-{rank}-{number}"
        path.write_text("".join(lines))
        names.append(str(path))
    return names


def dataset_of(worker: ProgramWorker, files: list[str], threads: int) -> Any:
    block = worker.network.main.global_block()
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([block.var(name) for name in ("ids", "x", "y")])
    dataset.set_batch_size(8)
    dataset.set_thread(threads)
    dataset.set_filelist(files)
    return dataset


@pytest.mark.parametrize("mode", STRATEGIES)
def test_workers_with_uneven_files_and_threads_learn_in_every_mode(
    mode: str, servers: NativeServers, tmp_path: Path
) -> None:
    files = [write_files(tmp_path, 0, [64, 40, 24]), write_files(tmp_path, 1, [80])]
    held = feeds_of(77, 1, batch=200)[0]

    def work(worker: ProgramWorker) -> tuple[float, float, Any]:
        rank = worker.fleet.worker_index()
        test = worker.network.main.clone(for_test=True)
        before = float(worker.run(held, [worker.network.loss], test)[0].reshape(-1)[0])
        for _ in range(EPOCHS):
            worker.executor.train_from_dataset(
                worker.network.main, dataset_of(worker, files[rank], 3), scope=worker.scope
            )
        for feed in feeds_of(rank, 2):  # a run is a pass with one thread
            worker.run(feed)
        worker.fleet.settle()
        after = float(worker.run(held, [worker.network.loss], test)[0].reshape(-1)[0])
        return before, after, worker.value("fc_0.w_0")

    found = run_workers(
        servers, 2, work, lambda: fluid.optimizer.SGD(0.05), STRATEGIES[mode], ids_and_numbers
    )
    for before, after, _ in found:
        assert after < 0.6 * before
    np.testing.assert_allclose(found[0][2], found[1][2], atol=1e-6)


def test_an_error_in_one_thread_ends_the_pass_of_all(
    servers: NativeServers, tmp_path: Path
) -> None:
    good, bad = write_files(tmp_path, 0, [64, 64])
    Path(bad).write_text("1 3 3 0.5 0.5 inf 1 0.0\n" * 64)

    def work(worker: ProgramWorker) -> str:
        with pytest.raises(SparseFleetError) as caught:
            worker.executor.train_from_dataset(
                worker.network.main, dataset_of(worker, [good, bad], 2), scope=worker.scope
            )
        return str(caught.value)

    found = run_workers(
        servers,
        1,
        work,
        lambda: fluid.optimizer.SGD(0.05),
        StrategyFactory.create_half_async_strategy,
    )
    assert "NaN" in found[0] or "finite" in found[0] or "inf" in found[0]
