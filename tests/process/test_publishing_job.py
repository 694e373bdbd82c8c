"""A job of real processes that publishes to a real Redis, from which a service predicts."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.support.launch_process import LaunchProcess
from tests.support.redis_process import RedisProcess
from tests.support.saved_training import DropoutClicks, click_batches, make_trainer

from sparsefleet import Predictor, optim
from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import UpdatedRows, open_rows, push_rows
from sparsefleet.serving.updates import RedisServer

ROOT = Path(__file__).parents[2]
SCRIPT = str(Path(__file__).parent / "publishing_script.py")


@pytest.mark.job
def test_what_a_job_published_is_what_its_first_worker_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    export = tmp_path / "export"
    with make_trainer(model=DropoutClicks(), optimizer=optim.SGD(lr=0.1)) as trainer:
        trainer.fit(click_batches(3, seed=9))
        trainer.export(export, click_batches(1)[0], onnx=False)
    with RedisProcess(tmp_path) as redis:
        server = RedisServer(redis.url)
        push_rows(export, server)
        server.close()
        rows = open_rows(export, read_manifest(export), rows=redis.url)
        assert isinstance(rows, UpdatedRows)
        before = Predictor(export, rows=rows).predict({"ids": click_batches(1, seed=5)[0][0]})
        words = ("--servers", "2", "--workers", "2", SCRIPT, str(export), redis.url)
        with closing(LaunchProcess(tmp_path, *words)) as job:
            assert job.wait() == 0, job.output()
        rows.close()
        rows = open_rows(export, read_manifest(export), rows=redis.url)
        found = Predictor(export, rows=rows).predict({"ids": click_batches(1, seed=5)[0][0]})
        rows.close()
    wanted = json.loads((tmp_path / "predictions.json").read_text())
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.abs(found - before).max() > 1e-3
