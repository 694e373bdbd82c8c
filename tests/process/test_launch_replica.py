"""`sparsefleet launch --durability replica`: another process keeps a copy of the servers' logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess

SCRIPT = """\
import os
import numpy as np
from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, TableSpec

with RemoteStore(os.environ["SPARSEFLEET_SERVERS"].split(",")) as store:
    optimizer = optim.SGD(lr=1.0)
    store.define(TableSpec(name="t", dim=1, optimizer=optimizer, initializer=Constant(0.0)))
    for _ in range(3):
        store.push("t", np.arange(8), np.full((8, 1), -1.0, np.float32))
    for stats in store.stats():
        assert stats["log.replica_epoch"] == 1, stats
        assert stats["log.replica_bytes"] > 0, stats
        assert stats["log.replica_lag_records"] == 0, stats
    assert store.pull("t", np.arange(8), train=False).ravel().tolist() == [3.0] * 8
"""


@pytest.mark.job
def test_servers_of_a_job_have_a_replica(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--servers", "2", "--workers", "1", "--native-servers", "--durability", "replica")
    launcher = LaunchProcess(tmp_path, *words, "train.py")
    try:
        assert launcher.wait() == 0, launcher.output()
        assert (tmp_path / "logs" / "replicalog.0").exists()
    finally:
        launcher.close()
