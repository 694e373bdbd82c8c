"""A real job pushes its metrics to an OpenTelemetry collector."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="pip install sparsefleet[otel]"
)

from tests.support.otlp_collector import OtlpCollector, labels_of

pytestmark = pytest.mark.job

SCRIPT = """
import torch
from torch import nn
from sparsefleet import Trainer, TrainerConfig
from sparsefleet.nn import SparseEmbedding

model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
batches = [(torch.arange(32), torch.ones(32))] * 40
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Trainer(model, nn.MSELoss(), optimizer, config=TrainerConfig(quiet=True)) as trainer:
    trainer.fit(batches)
"""


def test_the_launcher_pushes_the_metrics_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    collector = OtlpCollector()
    (tmp_path / "train.py").write_text(SCRIPT)
    job = LaunchProcess(
        tmp_path, "--servers", "1", "--workers", "1", "--otlp", collector.url,
        "--log-dir", "logs", "train.py",
    )  # fmt: skip
    try:
        assert job.wait() == 0, job.output()
        rows: set[str] = set()
        roles: set[str] = set()
        for request in collector.requests:
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                if metric.name == "sparsefleet_process_cpu_seconds_total":
                    roles |= {labels_of(point)["role"] for point in metric.sum.data_points}
                if metric.name == "sparsefleet_table_rows":
                    rows |= {labels_of(point)["role"] for point in metric.gauge.data_points}
        assert {"launcher", "server"} <= roles
        assert rows == {"server"}
    finally:
        job.close()
        collector.close()


def test_a_script_without_a_launcher_pushes_its_own(tmp_path: Path) -> None:
    collector = OtlpCollector()
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "SPARSEFLEET_OTLP": collector.url}
    try:
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True,
            timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        wait_until(lambda: bool(collector.requests), "the last push")
        (steps,) = collector.metrics()["sparsefleet_worker_steps_total"].sum.data_points
        assert steps.as_double == 40
        assert labels_of(steps) == {"role": "worker", "index": "0"}
    finally:
        collector.close()
