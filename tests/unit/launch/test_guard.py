"""What the guard of a launcher cleans up once the launcher is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sparsefleet.launch.child_process import Guard


def test_files_and_directories_are_removed_when_the_launcher_is_gone(tmp_path: Path) -> None:
    """What workers leave in shared memory would otherwise stay until the next boot."""
    key, outboxes = tmp_path / "job.key", tmp_path / "outboxes"
    key.touch()
    outboxes.mkdir()
    (outboxes / "worker-0").write_bytes(b"a round")
    with (
        Guard(grace_s=5.0) as guard,  # its pipe closes at the end, as when the launcher is killed
        subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=True) as child,
    ):
        guard.add(child.pid)
        guard.remove_file(str(key))
        guard.remove_directory(str(outboxes))
        assert outboxes.exists()
        child.kill()
    assert not key.exists()
    assert not outboxes.exists()
