"""Profiles: a trace with the parts of steps, of workers and servers, on one time line."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.server_process import ServerProcess
from torch import nn

from sparsefleet.engine.profiling import ProfileConfig
from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.store import RemoteStore, TableSpec
from sparsefleet.train import Trainer, TrainerConfig

BATCH = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([1.0, 0.0]))


def train(config: TrainerConfig, threads: int = 1) -> None:
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.25)
    with Trainer(
        model, nn.BCEWithLogitsLoss(), optimizer, threads=threads, config=config
    ) as trainer:
        trainer.fit([BATCH] * 40, epochs=2)


def test_the_steps_asked_for_are_drawn_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    train(TrainerConfig(quiet=True, profile=ProfileConfig(path=path, skip_steps=3, steps=5)))
    events = json.loads(path.read_text())["traceEvents"]
    steps = [each for each in events if each["name"].startswith("step ")]
    assert [each["name"] for each in steps] == [f"step {number}" for number in range(4, 9)]
    for before, after in itertools.pairwise(steps):
        assert after["ts"] >= before["ts"]
    for step in steps:
        inside = [
            each
            for each in events
            if each.get("cat") == "worker"
            and each is not step
            and step["ts"] <= each["ts"] < step["ts"] + step["dur"]
        ]
        assert {"compute", "push"} <= {each["name"] for each in inside}
    assert any(each.get("args") == {"name": "worker 0"} for each in events)


def test_an_epoch_shorter_than_the_profile_still_gives_a_trace(tmp_path: Path) -> None:
    train(TrainerConfig(quiet=True, profile=tmp_path / "trace.json"), threads=2)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="TrainerConfig.profile must be a path"):
        TrainerConfig(profile=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ProfileConfig.steps"):
        ProfileConfig(path="a", steps=0)


def test_servers_record_their_requests_while_asked(
    start_server: Callable[..., ServerProcess],
) -> None:
    endpoint = start_server().wait_ready()
    with RemoteStore([endpoint]) as store:
        store.define(TableSpec(name="ads", dim=2))
        begun_ns = time.time_ns()
        store.command(0, "profile_begin", b"1000")
        store.pull("ads", [1, 2, 3])
        spans = json.loads(store.command(0, "profile_take"))
        (pull,) = [span for span in spans if span[0] == "pull"]
        assert begun_ns < pull[2] < time.time_ns()
        assert pull[3] > 0
        assert json.loads(store.command(0, "profile_take")) == []
        stats = store.stats()[0]
    assert stats["server.request_seconds.pull.le.inf"] == 1
    assert stats["table.ads.rows_sampled"] == 1
