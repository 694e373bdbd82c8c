"""Limits on running processes by Linux control groups (version 1): a slow disk, scarce memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """Yield the folder of a new group; skip the test where none can be created."""
    path = ROOT / controller / f"sparsefleet-{uuid.uuid4().hex[:12]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made at {path.parent}: {error.strerror}")
    try:
        yield path
    finally:
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                (path.parent / "cgroup.procs").write_text(pid)
        path.rmdir()


def set_limit(group: Path, name: str, value: str) -> None:
    """Set a limit; skip the test where the kernel does not have it."""
    try:
        (group / name).write_text(value)
    except OSError as error:
        pytest.skip(f"{group.parent.name} has no {name} here: {error.strerror}")


def add_process(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def limit_writes(group: Path, directory: Path, per_second: int) -> None:
    """Limit the group's writes per second to the disk of a directory."""
    device = os.stat(directory).st_dev
    # Limits of the disk apply to its partitions.
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not place.exists():
        pytest.skip(f"{directory} is not on a block device whose writes can be limited")
    disk = place.resolve().parent if (place / "partition").exists() else place.resolve()
    number = (disk / "dev").read_text().strip()
    set_limit(group, "blkio.throttle.write_iops_device", f"{number} {per_second}")


@contextlib.contextmanager
def swap_file(directory: Path, size_bytes: int) -> Iterator[None]:
    """Add a swap file to the system inside the block; skip the test where that is not allowed."""
    path = directory / "swap"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    path.chmod(0o600)
    for command in (["mkswap", str(path)], ["swapon", str(path)]):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"no {command[0]} here")
        if done.returncode != 0:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["swapoff", str(path)], check=True)
        path.unlink()
