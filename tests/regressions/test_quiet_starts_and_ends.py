"""Messages when a job starts before its servers, and when nothing is left to train."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from tests.support.ports import free_ports
from tests.support.servers import JOB_KEY, SERVER_DEFAULTS
from tests.unit.train.click_model import Clicks, clicks, trainer_of

from sparsefleet import _core
from sparsefleet.store import RemoteStore
from sparsefleet.train import CheckpointConfig, TrainerConfig


def test_a_server_that_is_still_starting_alarms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Logs of every job opened with "try 1 failed: ... Connection refused"."""
    port = free_ports()[0]
    started: list[_core.Server] = []

    def start_late() -> None:
        threading.Event().wait(0.3)
        started.append(_core.Server(**{**SERVER_DEFAULTS, "port": port}))

    starter = threading.Thread(target=start_late)
    starter.start()
    with caplog.at_level(logging.INFO):
        with RemoteStore([f"127.0.0.1:{port}"], job_key=JOB_KEY) as store:
            assert len(store.stats()) == 1
    starter.join()
    started[0].stop()
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert [record for record in refused if record.levelno > logging.INFO] == []


def test_a_fit_that_was_finished_before_is_told_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to report that the data had no batches."""

    def run() -> str:
        checkpoints = CheckpointConfig(directory=tmp_path)
        config = TrainerConfig()
        with trainer_of(Clicks(), config=config, checkpoints=checkpoints, resume="auto") as trainer:
            trainer.fit(clicks(3), epochs=1)
        return capsys.readouterr().out

    run()
    shown = run()
    assert "nothing is left to train" in shown
    assert "no batches" not in shown
