"""A killed rank of a collective job is replaced from a living one; the others continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

RANKS, BATCHES, EPOCHS = 3, 24, 2
# Each step is reported, and one rank may be told to die in the middle of one.
SCRIPT = """\
import os, pathlib, sys, time
import torch
from torch import nn
from sparsefleet import fleet
from sparsefleet.train import Trainer, TrainerConfig

index, incarnation = os.environ["SPARSEFLEET_INDEX"], os.environ["SPARSEFLEET_INCARNATION"]
pathlib.Path("pids", f"{index}-{incarnation}").write_text(f"{os.getpid()}\\n")
batches, epochs, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(7)
model = nn.Sequential(
    nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1), nn.Flatten(0)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
steps = 0


def data():
    draw = torch.Generator().manual_seed(int(index))
    for _ in range(batches + int(index)):  # ranks have different amounts
        yield torch.rand(4, 6, generator=draw), torch.rand(4, generator=draw)


def loss(output, labels):
    global steps
    steps += 1
    pathlib.Path(f"steps-{index}").write_text(str(steps))
    time.sleep(pause_s)
    return nn.functional.mse_loss(output, labels)


quiet = TrainerConfig(quiet=True)
with Trainer(model, loss, optimizer, mode="collective", config=quiet) as trainer:
    trainer.fit(data, epochs=epochs)
    weights = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
    pathlib.Path(f"weights-{index}").write_bytes(weights.numpy().tobytes())
    means = torch.cat([model[1].running_mean, model[1].running_var])
    pathlib.Path(f"means-{index}").write_bytes(means.numpy().tobytes())
"""


def _run(folder: Path, kill: dict[int, int]) -> tuple[str, set[str], list[bytes]]:
    """Train; kill rank -> at which of its steps. Returns what the launcher printed, which processes
    there were, and what the ranks have at the end: weights, and running means of the first.
    """
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    shape = ("--servers", "0", "--workers", str(RANKS), "--max-restarts", "4", "--quiet")
    pause_s = "0.02" if kill else "0"
    launcher = LaunchProcess(folder, *shape, "train.py", str(BATCHES), str(EPOCHS), pause_s)
    try:
        for rank, step in kill.items():
            wait_until(lambda r=rank, s=step: _steps(folder, r) >= s, f"rank {rank} is at {step}")
            os.kill(launcher.pids()[f"{rank}-0"], signal.SIGKILL)
        code, output = launcher.wait(), launcher.output()
    finally:
        launcher.close()
    assert code == 0, output
    weights = [(folder / f"weights-{rank}").read_bytes() for rank in range(RANKS)]
    return output, set(launcher.pids()), [*weights, (folder / "means-0").read_bytes()]


def _steps(folder: Path, rank: int) -> int:
    path = folder / f"steps-{rank}"
    return int(path.read_text() or 0) if path.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return _run(tmp_path_factory.mktemp("ranks") / "job", {})[2]


@pytest.mark.job
@pytest.mark.parametrize("kill", [{2: 9}, {1: 7, 0: BATCHES + 12}], ids=["one", "two"])
def test_a_killed_rank_is_replaced_and_the_result_has_the_same_bits(
    undisturbed: list[bytes], tmp_path: Path, kill: dict[int, int]
) -> None:
    output, processes, found = _run(tmp_path / "job", kill)
    assert found[:RANKS] == undisturbed[:RANKS]
    if 0 not in kill:  # the running means of the first rank count
        assert found[RANKS] == undisturbed[RANKS]
    others = {f"{rank}-0" for rank in range(RANKS)}
    assert processes == others | {f"{rank}-1" for rank in kill}
    assert "restarted alone" in output
    assert "restarting all" not in output
