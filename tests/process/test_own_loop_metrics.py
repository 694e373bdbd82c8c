"""A worker with a custom training loop is monitored like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.launch_process import wait_until
from tests.support.monitored_job import MonitoredJob

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parent / "own_loop_script.py"


@pytest.mark.parametrize("loop", ["fleet", "executor"])
def test_steps_of_a_script_are_seen(loop: str, tmp_path: Path) -> None:
    job = MonitoredJob(tmp_path, loop, script=SCRIPT, workers=1)
    try:
        wait_until(lambda: (job.view()["totals"]["examples_per_s"] or 0) > 0, "examples per second")
        wait_until(lambda: job.view()["bottleneck"] is not None, "a bottleneck is named")
        reading = job.reading()
        steps = reading.sum("sparsefleet_worker_steps_total")
        assert reading.sum("sparsefleet_worker_examples_total") == 32 * steps
        spent = reading.by("sparsefleet_worker_activity_seconds_total", "activity")
        assert spent["compute"] > 0
        assert spent["other"] > 0
        assert reading.sum("sparsefleet_worker_pushes_total") > 0
        assert reading.sum("sparsefleet_worker_unique_lookups_total") > 0
        if loop == "fleet":  # it passes its loss to the step
            assert job.view()["totals"]["loss"] is not None
        else:
            assert "sparsefleet_worker_loss_total" not in reading
        assert "worker 0" in job.top()
        assert job.stop() == 0, job.launcher.output()
    finally:
        job.launcher.close()
