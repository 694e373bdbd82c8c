"""A server whose log directory is on a file system without space left."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.server_process import DEADLINE_S, ServerProcess

from sparsefleet import optim
from sparsefleet.errors import DiskFullError
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

KEYS = np.arange(50_000)
GRADIENTS = np.full((len(KEYS), 2), -1.0, np.float32)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_pushes_on_a_full_disk_wait_for_space_and_count_once(small_disk: Path) -> None:
    server = ServerProcess("--durability", "process", "--log-dir", str(small_disk))
    try:
        endpoint = server.wait_ready()
        waits = RemoteStoreConfig(try_timeout_s=0.5, failover_wait_s=DEADLINE_S)
        fails = RemoteStoreConfig(try_timeout_s=0.5, failover_wait_s=0.5)
        with (
            RemoteStore([endpoint], config=waits) as store,
            RemoteStore([endpoint], config=fails) as other,
        ):
            store.define(
                TableSpec(name="t", dim=2, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
            )

            def push() -> None:
                for _ in range(12):  # 800 KB each
                    store.push("t", KEYS, GRADIENTS, unique=True)

            thread = threading.Thread(target=push)
            thread.start()
            while other.stats()[0]["log.disk_full"] == 0:
                assert thread.is_alive()
            with pytest.raises(DiskFullError, match=r"nothing was changed") as caught:
                other.push("t", KEYS, 100 * GRADIENTS)
            assert str(small_disk) in str(caught.value)
            assert "bytes are free" in str(caught.value)
            assert thread.is_alive()
            # Reading needs no space.
            assert store.pull("t", KEYS[:1], train=False)[0, 0] <= 12
            subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
            thread.join(DEADLINE_S)
            assert store.pull("t", KEYS, train=False).tolist() == [[12.0, 12.0]] * len(KEYS)
        server.kill()
        flags = ("--durability", "process", "--log-dir", str(small_disk))
        server = ServerProcess("--endpoint", endpoint, *flags)
        server.wait_ready()
        with RemoteStore([endpoint]) as store:
            assert store.pull("t", KEYS, train=False).tolist() == [[12.0, 12.0]] * len(KEYS)
    finally:
        server.kill()
