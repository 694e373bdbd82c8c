"""Jobs on a real Ray of several raylets, whose processes are killed: every record counts once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.support.launch_process import is_alive, wait_until
from tests.support.ray_cluster import RayCluster, RayJob, ledger_words, ray_cluster, read_ledger

from sparsefleet.errors import ConfigError

pytestmark = [
    pytest.mark.job,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data's own settings
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]"),
]

SLOW = pytest.mark.slow  # minutes each on two cores
OTHERS = ("half_async", "async", "hybrid", "geo")
SERVERS = ("server-0", "server-1")
WORKERS = ("worker-0", "worker-1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(nodes=3, cpus=4) as running:
        yield running


def _start(cluster: RayCluster, place: Path, mode: str, *words: str, batches: int = 150) -> RayJob:
    flags = ["--servers", "2", "--workers", "2", *words]
    return RayJob(cluster, place, *flags, *ledger_words(place, mode, batches=batches))


def _wait_until_training(job: RayJob) -> None:
    def have_begun() -> bool:
        assert job.process.poll() is None, job.output()
        return all((job.directory / "out" / f"begun-{rank}").exists() for rank in (0, 1))

    wait_until(have_begun, "both workers train")


def _kill(job: RayJob, name: str) -> int:
    """Kill a process and wait until another has replaced it; return the killed pid."""
    pid = int(job.processes()[name].pid)
    os.kill(pid, signal.SIGKILL)

    def is_replaced() -> bool:
        assert job.process.poll() is None, job.output()
        found = job.processes().get(name)
        return found is not None and found.pid != pid

    wait_until(is_replaced, f"another {name}")
    return pid


def _is_elsewhere(job: RayJob, node_id: str) -> bool:
    assert job.process.poll() is None, f"the job ended before: {job.output()}"
    found = job.processes()
    return bool(found) and all(who.node_id != node_id for who in found.values())


def _check_exact(job: RayJob, lost: str = "") -> None:
    assert job.wait() == 0, job.output()
    ledger = read_ledger(job.directory)
    assert ledger["records"] > 0
    assert (ledger["missing"], ledger["repeated"]) == (0, 0), ledger
    job.wait_for_no_process()
    left = [path for path in job.leftovers() if not lost or path.name != lost[:16]]
    assert left == []


def test_a_failing_script_ends_the_job_with_its_code(cluster: RayCluster, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text(
        "import sys\n"
        "from sparsefleet import fleet\n"
        "fleet.init()\n"
        "if fleet.is_server():\n"
        "    fleet.run_server()\n"
        "sys.exit(3 if fleet.worker_index() == 1 else 0)\n"
    )
    job = RayJob(cluster, tmp_path, "--servers", "1", "--workers", "2", str(script))
    try:
        assert job.wait() == 3, job.output()
        assert "exited with 3" in job.output()
    finally:
        job.close()


def test_a_function_trains_on_shards_of_ray_data_and_reports(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Worker 1 kills itself once; its replacement gets the same records."""
    import ray.data
    import ray.train

    from sparsefleet.ray import RayTrainer, Servers

    del cluster
    records = 4000

    def train() -> None:
        import os
        import signal
        import tempfile

        import torch
        from torch import nn

        import sparsefleet
        from sparsefleet.fleet import role_from_environment
        from sparsefleet.nn import SparseEmbedding
        from sparsefleet.store import Constant, RemoteStore

        role = role_from_environment()
        is_first_start = os.environ["SPARSEFLEET_INCARNATION"] == "0"

        class Ledger(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows = SparseEmbedding("ledger", 1, initializer=Constant(0.0))

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return -self.rows(ids).sum()

        def batches() -> Iterator[torch.Tensor]:
            shard = ray.train.get_dataset_shard("train")
            for number, batch in enumerate(shard.iter_batches(batch_size=50, batch_format="numpy")):
                if number == 20 and role.index == 1 and is_first_start:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield torch.from_numpy(batch["id"].copy())

        config = sparsefleet.TrainerConfig(quiet=True)
        optimizer = sparsefleet.optim.SGD(lr=1.0)
        with sparsefleet.Trainer(Ledger(), None, optimizer, mode="async", config=config) as trainer:
            trainer.fit(batches)
        with RemoteStore(role.server_endpoints, name=f"auditor-{role.index}") as store:
            store.put_note(f"done/{role.index}", b"")
            for rank in range(2):
                store.get_note(f"done/{rank}", wait=True, timeout_s=200.0)
            rows = store.pull("ledger", np.arange(records), train=False)
            exact = bool((rows == 1).all())
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mine").write_text(str(role.index))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"exact": exact, "starts": not is_first_start}, checkpoint=checkpoint)

    result = RayTrainer(
        train,
        servers=Servers(2, num_cpus=0.5),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=2)
        ),
        datasets={"train": ray.data.range(records)},
    ).fit()
    assert result.metrics["exact"]
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "mine").exists()


def test_a_dataset_of_ray_data_is_read_as_the_same_columns_in_memory(cluster: RayCluster) -> None:
    import ray.data

    from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric

    del cluster
    features = Features(
        Categorical("ad"),
        Categorical("city", hash_seed=1),
        MultiValued("tags", hash_seed=2),
        Numeric("price", missing=0.0),
        label="click",
    )
    rows = [
        {
            "ad": at,
            "city": f"city {at % 7}",
            "tags": [f"tag {tag}" for tag in range(at % 4)],
            "price": None if at < 100 else at * 0.5,  # some blocks have no price at all
            "click": float(at % 2),
        }
        for at in range(1000)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    ((wanted, labels),) = features.memory(columns, 1000)
    dataset = ray.data.from_items(rows, override_num_blocks=7)
    for source in (dataset, dataset.iterator(), dataset.materialize().sort("ad")):
        found = list(features.reader(source, batch_size=64))
        ads = np.concatenate([inputs["ad"] for inputs, _ in found])
        order = np.argsort(ads)
        assert ads[order].tolist() == list(range(1000))
        for name in ("city", "price"):
            values = np.concatenate([inputs[name] for inputs, _ in found])
            np.testing.assert_array_equal(values[order], wanted[name])
        np.testing.assert_array_equal(np.concatenate([one for _, one in found])[order], labels)
        tags = [part for inputs, _ in found for part in np.split(*_borders(inputs["tags"]))]
        np.testing.assert_array_equal(np.concatenate([tags[at] for at in order]), wanted["tags"][0])
    with pytest.raises(ConfigError, match=r"for worker_num=2: .*dataset\.materialize\(\)"):
        list(features.reader(dataset.limit(1000), batch_size=64, worker_num=2))
    half = [features.reader(dataset, batch_size=64, worker_index=at, worker_num=2) for at in (0, 1)]
    assert sum(len(labels) for reader in half for _, labels in reader) == 1000


def _borders(ragged: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments of np.split for a list per example."""
    values, offsets = ragged
    return values, offsets[1:]


def test_reports_stay_aligned_when_workers_are_replaced(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Worker 1 is killed in a loop of `fit` and `report`, and in a `fit` whose callback reports;
    worker 0 waits in its report meanwhile.
    """
    import ray.train

    from sparsefleet.ray import RayTrainer, Servers

    del cluster

    def train() -> None:
        import os
        import signal
        import tempfile

        import torch
        from torch import nn

        import sparsefleet
        from sparsefleet.fleet import role_from_environment
        from sparsefleet.monitor import PROCESS
        from sparsefleet.nn import SparseEmbedding

        index, start = role_from_environment().index, int(os.environ["SPARSEFLEET_INCARNATION"])
        (tmp_path / f"checkpoint-{index}-{start}").write_text(str(ray.train.get_checkpoint()))

        class Rows(nn.Module):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.rows = SparseEmbedding(name, 1)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.rows(ids).sum()

        def batches(label: str) -> Iterator[torch.Tensor]:
            for number in range(6):
                if (index, start, label, number) in ((1, 0, "round 1", 3), (1, 1, "epoch 2", 3)):
                    # Ray Train drops reports that it has not collected when a worker is lost.
                    ray.train.get_all_reported_checkpoints()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield torch.arange(20) + 20 * number

        def report(label: str) -> None:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"worker-{index}").write_text(label)
                checkpoint = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"label": label}, checkpoint=checkpoint)

        class Reporting(sparsefleet.train.Callback):
            def on_epoch_end(self, trainer: object, epoch: sparsefleet.train.Epoch) -> None:
                del trainer
                report(f"epoch {epoch.number}")

        config = sparsefleet.TrainerConfig(quiet=True)
        optimizer = sparsefleet.optim.SGD(lr=1.0)
        model = Rows("rounds")
        with sparsefleet.Trainer(model, None, optimizer, mode="async", config=config) as trainer:
            for number in range(3):
                trainer.fit(lambda number=number: batches(f"round {number}"))
                report(f"round {number}")
        epochs = iter(range(1 if start < 2 else 2, 4))
        optimizer = sparsefleet.optim.SGD(lr=1.0)
        with sparsefleet.Trainer(
            Rows("epochs"), None, optimizer, mode="async", config=config, callbacks=[Reporting()]
        ) as trainer:
            trainer.fit(lambda: batches(f"epoch {next(epochs)}"), epochs=3)
        names = {each.name for each in PROCESS.collect()}
        (tmp_path / f"metrics-{index}").write_text("\n".join(names))

    result = RayTrainer(
        train,
        servers=Servers(1, num_cpus=0.5),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=2)
        ),
    ).fit()
    labels = [
        [Path(checkpoint.path, f"worker-{index}").read_text() for index in range(2)]
        for checkpoint, _ in result.best_checkpoints
    ]
    expected = [*(f"round {number}" for number in range(3)), *(f"epoch {n}" for n in (1, 2, 3))]
    assert labels == [[label, label] for label in expected]
    # A process that replaces another repeats its calls, and must not load a later state.
    seen = sorted(path.name for path in tmp_path.glob("checkpoint-?-?"))
    assert seen == ["checkpoint-0-0", "checkpoint-1-0", "checkpoint-1-1", "checkpoint-1-2"]
    assert {(tmp_path / name).read_text() for name in seen} == {"None"}
    for index in range(2):
        assert "sparsefleet_worker_steps_total" in (tmp_path / f"metrics-{index}").read_text()


def test_a_report_that_is_uploaded_while_a_worker_is_replaced_is_not_paired_with_the_next(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Ray Train forgets what it has collected of report 1; worker 0 delivers its part later."""
    import ray.train

    from sparsefleet.ray import RayTrainer, Servers

    del cluster
    replaced = tmp_path / "replaced"

    def train() -> None:
        import os
        import signal
        import tempfile

        import torch
        from torch import nn

        import sparsefleet
        from sparsefleet.fleet import role_from_environment
        from sparsefleet.nn import SparseEmbedding

        index, start = role_from_environment().index, int(os.environ["SPARSEFLEET_INCARNATION"])
        if index == 1 and start == 1:
            replaced.touch()

        class Rows(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows = SparseEmbedding("rows", 1)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.rows(ids).sum()

        def upload(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
            if index == 0 and Path(checkpoint.path, "worker-0").read_text() == "1":
                wait_until(replaced.exists, "worker 1 is replaced")
            storage = ray.train.get_context().get_storage()
            return storage.persist_current_checkpoint(checkpoint, name)

        def report(number: int) -> None:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"worker-{index}").write_text(str(number))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
                metrics = {"number": number}
                ray.train.report(metrics, checkpoint=checkpoint, checkpoint_upload_fn=upload)

        config = sparsefleet.TrainerConfig(quiet=True)
        optimizer = sparsefleet.optim.SGD(lr=1.0)
        with sparsefleet.Trainer(Rows(), None, optimizer, mode="async", config=config) as trainer:
            for number in range(4):
                trainer.fit([torch.arange(20)])
                report(number)
                if (index, start, number) == (1, 0, 0):
                    ray.train.get_all_reported_checkpoints()
                if (index, start, number) == (1, 0, 1):
                    os.kill(os.getpid(), signal.SIGKILL)

    result = RayTrainer(
        train,
        servers=Servers(1, num_cpus=0.5),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    ).fit()
    pairs = [
        [Path(checkpoint.path, f"worker-{index}").read_text() for index in range(2)]
        for checkpoint, _ in result.best_checkpoints
    ]
    assert pairs == [["0", "0"], ["2", "2"], ["3", "3"]]
    assert [metrics["number"] for _, metrics in result.best_checkpoints] == [0, 2, 3]


def test_a_single_worker_gets_all_of_a_dataset_that_a_function_makes(
    cluster: RayCluster, tmp_path: Path
) -> None:
    import ray.data
    import ray.train

    from sparsefleet.ray import RayTrainer, Servers

    del cluster

    def train() -> list[int]:
        return [row["id"] for row in ray.train.get_dataset_shard("train").iter_rows()]

    result = RayTrainer(
        train,
        servers=Servers(1, num_cpus=0.5),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path)),
        datasets={"train": lambda: ray.data.range(50)},
    ).fit()
    assert sorted(result.return_value) == list(range(50))  # Ray Data keeps no order


def test_an_error_of_the_function_is_raised_and_servers_end(
    cluster: RayCluster, tmp_path: Path
) -> None:
    import ray.train

    from sparsefleet.ray import RayTrainer, Servers

    del cluster

    def train() -> None:
        raise ValueError("no such column")

    with pytest.raises(ray.train.TrainingFailedError, match="no such column"):
        RayTrainer(
            train,
            servers=Servers(1, num_cpus=0.5),
            run_config=ray.train.RunConfig(name="failing", storage_path=str(tmp_path)),
        ).fit()

    def has_ended() -> bool:
        named = ray.util.list_named_actors(all_namespaces=True)
        return not any(actor["name"].startswith("failing-") for actor in named)

    wait_until(has_ended, "no actor of the job is left")


def test_too_large_servers_are_refused_with_what_is_free(cluster: RayCluster) -> None:
    from sparsefleet.ray import RayTrainer, Servers

    del cluster
    servers = Servers(1, memory="900TiB", start_timeout_s=1.0)
    with pytest.raises(ConfigError, match=r"could not place 1 x .* within 1 s"):
        RayTrainer(lambda: None, servers=servers).fit()


def test_workers_that_find_no_room_are_named(cluster: RayCluster, tmp_path: Path) -> None:
    flags = ["--servers", "1", "--workers", "2", "--native-servers", "--worker-cpus", "99"]
    job = RayJob(cluster, tmp_path, *flags, *ledger_words(tmp_path, "sync"))
    try:
        wait_until(lambda: "s for worker-0, worker-1. Each worker" in job.output(), "named")
        assert "asks Ray for CPU 99; free: CPU 11 of 12." in job.output()
    finally:
        job.close()
    job.wait_for_no_process()


def test_ray_train_of_the_first_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    variables = {**os.environ, "RAY_TRAIN_V2_ENABLED": "0"}
    command = [sys.executable, "-m", "sparsefleet", "launch", "--on", "ray", "train.py"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, timeout=240)
    assert done.returncode != 0
    assert b"needs Ray Train v2; remove RAY_TRAIN_V2_ENABLED=0" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "mode",
    [
        "sync",
        *(pytest.param(mode, marks=SLOW) for mode in ("half_async", "async", "hybrid", "geo")),
    ],
)
def test_killed_server_and_worker_restart_alone(
    cluster: RayCluster, tmp_path: Path, mode: str
) -> None:
    job = _start(cluster, tmp_path, mode)
    try:
        before = job.wait_for(*SERVERS, *WORKERS)
        nodes = {name: who.node_id for name, who in before.items()}
        assert nodes["server-0"] != nodes["server-1"]  # spread
        assert nodes["worker-0"] == nodes["worker-1"]  # packed
        _wait_until_training(job)
        killed = {_kill(job, "server-1"), _kill(job, "worker-1")}
        after = job.wait_for(*SERVERS, *WORKERS)
        assert {name for name in before if before[name].pid != after[name].pid} == {
            "server-1",
            "worker-1",
        }
        assert job.starts() == {"server-0": 1, "server-1": 2, "worker-0": 1, "worker-1": 2}
        assert not any(is_alive(pid) for pid in killed)
        _check_exact(job)
    finally:
        job.close()


@SLOW
def test_servers_of_a_lost_node_come_back_elsewhere(cluster: RayCluster, tmp_path: Path) -> None:
    # Enough batches that the job still trains when Ray notices the loss.
    job = _start(cluster, tmp_path, "sync", "--durability", "replica", batches=1000)
    try:
        before = job.wait_for(*SERVERS, *WORKERS)
        _wait_until_training(job)
        mortal = {node.node_id for node in cluster.nodes}
        lost = next(before[name].node_id for name in SERVERS if before[name].node_id in mortal)
        cluster.kill_raylet(lost)
        wait_until(lambda: _is_elsewhere(job, lost), "no process on the lost node")
        _check_exact(job, lost)
    finally:
        job.close()
        cluster.replace_node()


@SLOW
def test_a_job_whose_driver_was_killed_continues_under_its_name(
    cluster: RayCluster, tmp_path: Path
) -> None:
    first = _start(cluster, tmp_path, "async")
    try:
        first.wait_for(*SERVERS, *WORKERS)
        _wait_until_training(first)
        first.process.kill()
        first.process.wait()
        first.wait_for_no_process()
    finally:
        first.close()
    second = _start(cluster, tmp_path, "async")
    try:
        second.wait_for(*SERVERS, *WORKERS)
        _check_exact(second)
        assert "continuing where it was interrupted" in second.output()
    finally:
        second.close()
