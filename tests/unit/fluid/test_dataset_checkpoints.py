"""Passes over a Dataset that are saved while they train, ended, and resumed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.saved_training import StoppedError, assert_same

from sparsefleet import fluid
from sparsefleet.checkpoint import latest
from sparsefleet.errors import CheckpointMissingError, ConfigError
from sparsefleet.train import CheckpointConfig

L = fluid.layers
PASSES = 3


def write_files(folder: Path, files: int = 2, lines: int = 60) -> list[str]:
    rng = np.random.default_rng(1)
    paths = []
    for number in range(files):
        rows = []
        for _ in range(lines):
            ids = rng.integers(1, 40, rng.integers(1, 4))
            x = " ".join(f"{value:.4f}" for value in rng.normal(size=3))
            slot = " ".join(map(str, ids))
            rows.append(f"{len(ids)} {slot} 3 {x} 1 {int(ids[0] % 2)}\n")
        paths.append(folder / f"part-{number}")
        paths[-1].write_text("".join(rows))
    return [str(path) for path in paths]


class Click:
    """Rows, batch norm, seeded and unseeded dropout, an AUC, and Adam with a falling rate."""

    def __init__(self) -> None:
        self.main, self.startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.startup.random_seed = 7
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            ids = L.data("ids", [1], dtype="int64", lod_level=1)
            x, label = L.data("x", [3]), L.data("label", [1], dtype="int64")
            rows = L.embedding(ids, [100, 4], is_sparse=True, param_attr="rows")
            hidden = L.concat([L.sequence_pool(rows, "sum"), x], axis=1)
            hidden = L.dropout(L.batch_norm(L.fc(hidden, 6, act="relu")), 0.2, seed=5)
            predict = L.fc(L.dropout(hidden, 0.1), 2, act="softmax")
            self.loss = L.mean(L.cross_entropy(predict, label))
            self.auc = L.auc(predict, label)[0]
            rate = L.exponential_decay(0.05, decay_steps=10, decay_rate=0.9)
            fluid.optimizer.Adam(rate).minimize(self.loss)
            self.variables = [ids, x, label]
        self.executor = fluid.Executor()
        self.executor.run(self.startup, scope=self.scope)

    def values(self) -> dict[str, Any]:
        kept = [variable.name for variable in self.main.list_vars() if variable.persistable]
        found = {name: self.scope.find_var(name) for name in kept}
        return {name: np.array(v.get_tensor()) for name, v in found.items() if v is not None}


class Breaking:
    """A dataset whose passes end with an error, after a given number of batches."""

    def __init__(self, dataset: Any, batches: int) -> None:
        self._dataset = dataset
        self._left = batches
        self.thread_num = dataset.thread_num
        self.filelist = dataset.filelist

    def feeds(self) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        for feed in self._dataset:
            if self._left == 0:
                raise StoppedError("the data has come to the end of the test")
            self._left -= 1
            yield feed

    def state_dict(self) -> Any:
        return self._dataset.state_dict()

    def finished_state_dict(self) -> Any:
        return self._dataset.finished_state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._dataset.load_state_dict(state)


def dataset_of(click: Click, files: list[str], kind: str) -> Any:
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_use_var(click.variables)
    made.set_batch_size(8)
    made.set_filelist(files)
    if kind == "InMemoryDataset":
        made.load_into_memory()
        made.local_shuffle(seed=3)
    return made


def train(click: Click, dataset: Any, passes: int = PASSES, **saving: Any) -> None:
    torch.manual_seed(0)
    for _ in range(passes):
        click.executor.train_from_dataset(click.main, dataset, click.scope, **saving)


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
@pytest.mark.parametrize("batches", [5, 22])
def test_a_resumed_program_ends_with_the_same_bits(
    kind: str, batches: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_files(tmp_path)
    config = CheckpointConfig(
        directory=tmp_path / "saves",
        every_steps=2,
        skip_while_writing=False,
        deltas_between_fulls=2 if batches == 5 else 0,
    )
    whole = Click()
    train(whole, dataset_of(whole, files, kind))
    first = Click()
    broken = Breaking(dataset_of(first, files, kind), batches)
    with pytest.raises(StoppedError):
        train(first, broken, checkpoints=config, resume="auto")
    second = Click()
    train(second, dataset_of(second, files, kind), checkpoints=config, resume="auto")
    assert_same(second.values(), whole.values())
    assert "resumed from" in capsys.readouterr().out


def test_a_program_resumes_with_tables_of_its_own_after_another_start(tmp_path: Path) -> None:
    """Running the startup program again creates new tables, which checkpoints contain."""
    files = write_files(tmp_path)
    config = CheckpointConfig(directory=tmp_path / "saves")
    click = Click()
    dataset = dataset_of(click, files, "QueueDataset")
    train(click, dataset, 1, checkpoints=config)
    click.executor.run(click.startup, scope=click.scope)
    train(click, dataset, 1, checkpoints=config)
    again = Click()
    newest = latest(str(tmp_path / "saves"))
    assert newest is not None
    train(again, dataset_of(again, files, "QueueDataset"), 2, resume=newest.path)
    assert_same(again.values(), click.values())


def test_variables_of_the_environment_save_and_resume_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_files(tmp_path)
    monkeypatch.setenv("SPARSEFLEET_FLUID_CHECKPOINTS", str(tmp_path / "saves"))
    monkeypatch.setenv("SPARSEFLEET_FLUID_CHECKPOINT_SECONDS", "0.001")
    monkeypatch.setenv("SPARSEFLEET_FLUID_PROGRESS", "1")
    click = Click()
    train(click, dataset_of(click, files, "QueueDataset"), 1)
    (folder,) = (tmp_path / "saves").iterdir()
    assert latest(str(folder)) is not None
    assert "bottleneck:" in capsys.readouterr().out


def test_progress_shows_the_loss_the_speed_and_the_bottleneck(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    click = Click()
    files = write_files(tmp_path)
    train(click, dataset_of(click, files, "InMemoryDataset"), 1, progress=True)
    shown = capsys.readouterr().out
    assert "examples/s" in shown
    assert "loss nan" not in shown
    assert "loss 0." in shown
    assert "trained 120 examples" in shown
    assert "bottleneck: " in shown
    assert "where the time went" in shown


def test_a_program_that_was_trained_and_saved_is_not_kept_alive(tmp_path: Path) -> None:
    click = Click()
    dataset = dataset_of(click, write_files(tmp_path), "QueueDataset")
    train(click, dataset, 1, checkpoints=CheckpointConfig(directory=tmp_path / "saves"))
    program, scope = weakref.ref(click.main), weakref.ref(click.scope)
    del click, dataset
    gc.collect()
    assert program() is None
    assert scope() is None


@pytest.mark.parametrize(
    ("saving", "message"),
    [
        (lambda _: {"resume": "auto"}, "resume='auto'"),
        (lambda _: {"checkpoints": "saves"}, "CheckpointConfig"),
        (lambda folder: {"resume": folder / "nothing"}, "expected a checkpoint"),
    ],
)
def test_settings_that_make_no_sense(
    saving: Callable[[Path], dict[str, Any]], message: str, tmp_path: Path
) -> None:
    click = Click()
    dataset = dataset_of(click, write_files(tmp_path), "QueueDataset")
    with pytest.raises((ConfigError, CheckpointMissingError), match=message):
        train(click, dataset, 1, **saving(tmp_path))
