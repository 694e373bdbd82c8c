"""Servers that outlive a job: the next one says that it continues with the old tables."""

from __future__ import annotations

import logging

import pytest
from tests.support.fleet_workers import fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks

from sparsefleet import optim
from sparsefleet.engine import placement
from sparsefleet.train import Trainer


def train(servers: NativeServers) -> None:
    model, optimizer = Clicks(), optim.SGD(lr=0.1)
    with Trainer(model, BCE, optimizer, config=QUIET, fleet=fleet_of(servers, 0, 1)) as trainer:
        trainer.fit(clicks(2))


def test_the_second_job_warns_of_the_rows_that_it_finds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    caplog.set_level(logging.WARNING)
    with NativeServers(2) as servers:
        train(servers)
        train(servers)  # from the same process, and so from the same job
        assert "earlier job" not in caplog.text
        monkeypatch.setattr(placement, "_THIS_JOB", "another")
        train(servers)
        assert (
            "tables from an earlier job, and this one continues with them: 'ads' (" in caplog.text
        )
