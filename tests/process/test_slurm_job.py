"""A job in a real Slurm: killed processes are restarted, and every record is trained once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import wait_until
from tests.support.ports import free_ports
from tests.support.slurm_cluster import SlurmCluster, Task, missing_programs

LEDGER = "sparsefleet.cli.ledger"

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"
    ),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as place:  # a short path, for munge's socket
        made = SlurmCluster(Path(place), num_nodes=3)
        yield made
        made.close()


def write_script(directory: Path, *words: str, script: tuple[str, ...]) -> Path:
    path = directory / "job.sh"
    port = f"--port={free_ports(2)[0]}"
    size = (port, "--server-cpus=1", "--worker-cpus=1", "--server-memory=1G", "--worker-memory=1G")
    manifest = (sys.executable, "-m", "sparsefleet", "manifest", "slurm")
    subprocess.run(
        [*manifest, *size, *words, "--output", str(path), *script],
        check=True,
        cwd=directory,
        stderr=subprocess.DEVNULL,
    )
    return path


def submit_ledger(cluster: SlurmCluster, directory: Path, *words: str, mode: str) -> int:
    (directory / "out").mkdir()
    ledger = ("-m", LEDGER, "--out=out", "--batches=250", "--pace-ms=20", f"--mode={mode}")
    script = write_script(directory, "--servers=2", "--workers=2", *words, script=ledger)
    return cluster.submit(script)


def start_ledger(cluster: SlurmCluster, directory: Path, *words: str, mode: str) -> int:
    job = submit_ledger(cluster, directory, *words, mode=mode)
    begun = [directory / "out" / f"begun-{index}" for index in range(2)]
    await_that(directory, lambda: all(path.exists() for path in begun), "training")
    return job


def output(directory: Path) -> str:
    logs = [*directory.glob("*.out"), *directory.glob("sparsefleet-state/*/*log.*")]
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in logs)


def await_that(directory: Path, condition: Callable[[], bool], what: str) -> None:
    try:
        wait_until(condition, what)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{output(directory)}") from error


def await_exact_end(cluster: SlurmCluster, job: int, directory: Path) -> None:
    await_that(directory, lambda: cluster.is_over(job), "over")
    assert cluster.exit_code(job) == 0, output(directory)
    found = json.loads((directory / "out" / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (16000, 0, 0), found
    assert not cluster.tasks(LEDGER)


def by_role(tasks: list[Task]) -> dict[tuple[str, int], Task]:
    return {(task.kind, task.index): task for task in tasks}


def test_killed_worker_and_server_restart_alone_and_every_record_is_trained_once(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    job = start_ledger(cluster, tmp_path, mode="async")
    before = by_role(cluster.tasks(LEDGER))
    assert set(before) == {("server", 0), ("server", 1), ("worker", 0), ("worker", 1)}
    for victim in (("worker", 1), ("server", 0)):
        os.kill(before[victim].pid, signal.SIGKILL)
        await_that(
            tmp_path,
            lambda victim=victim: (
                by_role(cluster.tasks(LEDGER)).get(victim, before[victim]).pid != before[victim].pid
            ),
            f"{victim} restarted",
        )
    after = by_role(cluster.tasks(LEDGER))
    for survivor in (("worker", 0), ("server", 1)):
        assert after[survivor].pid == before[survivor].pid
    await_exact_end(cluster, job, tmp_path)
    assert output(tmp_path).count("restarted alone") == 2
    state = next(tmp_path.glob("sparsefleet-state/*"))
    assert not list(state.glob("server-[0-9]*")), "the servers' state is left"
    assert not (state / "job.key").exists()


def test_job_whose_step_slurm_killed_is_requeued_and_continues(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    job = start_ledger(cluster, tmp_path, "--native-servers", mode="sync")
    key = next(tmp_path.glob("sparsefleet-state/*/job.key"))
    assert key.stat().st_mode & 0o777 == 0o600
    worker = by_role(cluster.tasks(LEDGER))["worker", 0]
    # The task itself, so that Slurm ends its step, and the process, as cgroups would.
    os.kill(worker.parent, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    await_that(tmp_path, lambda: "; requeued" in output(tmp_path), "requeued")
    await_exact_end(cluster, job, tmp_path)
    assert "restart 1: continues" in output(tmp_path)


@pytest.mark.parametrize("to", [("--batch",), ()], ids=["time limit", "preempted"])
def test_job_is_requeued_and_continues_after_notice_of_its_end(
    cluster: SlurmCluster, tmp_path: Path, to: tuple[str, ...]
) -> None:
    job = start_ledger(cluster, tmp_path, "--native-servers", mode="geo")
    cluster.run("scancel", *to, "--signal=TERM", str(job))
    await_requeued_on_notice(cluster, job, tmp_path)


def test_notice_while_processes_start_is_not_lost(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit_ledger(cluster, tmp_path, "--native-servers", mode="async")
    await_that(tmp_path, (tmp_path / "sparsefleet-state" / str(job)).exists, "script started")
    cluster.run("scancel", "--batch", "--signal=TERM", str(job))
    await_requeued_on_notice(cluster, job, tmp_path)


def await_requeued_on_notice(cluster: SlurmCluster, job: int, directory: Path) -> None:
    await_that(directory, lambda: "; requeued" in output(directory), "requeued")
    assert "ended with 75; requeued" in output(directory)  # 143: Slurm killed a worker meanwhile
    await_exact_end(cluster, job, directory)


def test_canceled_job_ends_and_is_not_requeued(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = start_ledger(cluster, tmp_path, "--native-servers", mode="async")
    cluster.run("scancel", str(job))
    await_that(tmp_path, lambda: cluster.is_over(job) and not cluster.tasks(LEDGER), "over")
    assert "; requeued" not in output(tmp_path)
    assert "JobState=CANCELLED" in cluster.run("scontrol", "show", "job", str(job), "--oneliner")


def test_error_of_the_script_ends_the_job_with_its_code(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "from sparsefleet import fleet\n"
        "fleet.init()\n"
        "if fleet.is_server():\n"
        "    fleet.run_server()\n"
        "else:\n"
        "    raise SystemExit(f'worker {fleet.worker_index()} cannot read its data')\n"
    )
    job = cluster.submit(write_script(tmp_path, script=("train.py",)))
    await_that(tmp_path, lambda: cluster.is_over(job), "over")
    assert cluster.exit_code(job) == 1
    assert "worker 0 cannot read its data" in output(tmp_path)
    assert "restarted alone" not in output(tmp_path)


def test_tasks_get_the_cpus_and_the_memory_of_their_component(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, subprocess, time\n"
        "from sparsefleet.fleet import role_from_environment\n"
        "steps = subprocess.run(['scontrol', 'show', 'step', '--oneliner'], "
        "capture_output=True, text=True)\n"
        "print('CPUs per task:', os.environ.get('SLURM_CPUS_PER_TASK'))\n"
        "print(steps.stdout, flush=True)\n"
        "time.sleep(600 if role_from_environment().kind == 'server' else 0)\n"
    )
    sizes = ("--server-memory=3G", "--workers=2", "--worker-cpus=2", "--worker-memory=2G")
    job = cluster.submit(write_script(tmp_path, *sizes, script=("train.py",)))
    await_that(tmp_path, lambda: cluster.is_over(job), "over")
    assert cluster.exit_code(job) == 0, output(tmp_path)
    state = next(tmp_path.glob("sparsefleet-state/*"))
    for name, cpus in (("serverlog.0", 1), ("workerlog.0", 2), ("workerlog.1", 2)):
        assert f"CPUs per task: {cpus}\n" in (state / name).read_text()
    assert "CPUs=4 Tasks=2 Name=bash" in (state / "workerlog.1").read_text()
    assert "TRES=cpu=4,mem=4G,node=1" in (state / "workerlog.1").read_text()
