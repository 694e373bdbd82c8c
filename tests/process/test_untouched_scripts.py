"""Scripts in the style of public Fluid programs, which do not mention sparsefleet."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from tests.process.paddle_run import run_as_paddle
from tests.support.ports import free_ports

SCRIPTS = Path(__file__).parent / "paddle_scripts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The scripts, and synthetic data: words below w20 are liked."""
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "data").mkdir()
    draw = random.Random(5)
    for part in range(2):
        lines = []
        for _ in range(300):
            words = [draw.randrange(60) for _ in range(draw.randrange(1, 5))]
            label = int(min(words) < 20)
            lines.append(f"{label}\t{draw.random():.3f}\t{' '.join(f'w{w}' for w in words)}\n")
        (tmp_path / "data" / f"part-{part}").write_text("".join(lines))
    return tmp_path


def inferred_auc(folder: Path) -> float:
    done = run_as_paddle(folder, "infer.py")
    assert done.returncode == 0, done.stderr
    return float(re.fullmatch(r"loss \d\.\d+ auc (\S+)\n", done.stdout)[1])


def test_a_script_trains_from_a_pipe_and_another_infers(folder: Path) -> None:
    done = run_as_paddle(folder, "train.py", "--is_local", "1", "--epochs", "4")
    assert done.returncode == 0, done.stderr
    assert re.search(r"(?m)^auc\t", done.stdout), done.stdout
    assert inferred_auc(folder) > 0.9


@pytest.mark.job
def test_the_old_launcher_starts_servers_and_workers(folder: Path) -> None:
    port = free_ports(2)[0]
    shape = ("--worker_num", "2", "--server_num", "1", "--start_port", str(port))
    launcher = ("-m", "paddle.distributed.launch_ps", *shape)
    done = run_as_paddle(folder, *launcher, "train.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    for index in range(2):
        log = (folder / "logs" / f"workerlog.{index}").read_text()
        assert log.endswith(f"worker {index} of 2 is done\n"), log
    assert inferred_auc(folder) > 0.8


@pytest.mark.job
def test_the_launcher_of_collective_jobs_starts_ranks(folder: Path) -> None:
    port = free_ports(2)[0]
    launcher = ("-m", "paddle.distributed.launch", "--selected_gpus", "0,1", "--log_dir", "ranks")
    done = run_as_paddle(folder, *launcher, "--started_port", str(port), "collective.py")
    assert done.returncode == 0, done.stderr
    logs = [(folder / "ranks" / f"workerlog.{rank}").read_text() for rank in range(2)]
    found = [re.search(r"loss (\S+) (.*)", log) for log in logs]
    assert all(float(match[1]) < 0.05 for match in found), logs
    assert found[0][2] == found[1][2], "to the last digit"
