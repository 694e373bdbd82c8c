"""When a Trainer saves, where, and what it keeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.field_checks import require, require_bool, require_int, require_positive

__all__ = ["CheckpointConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """A series of checkpoints in one directory, written while training goes on.

    >>> CheckpointConfig(directory="checkpoints", every_steps=1000).keep
    3
    """

    directory: str | os.PathLike[str]
    """Each checkpoint is a directory in it, `step-<number>`. All servers and worker 0 must see it
    under this name: a shared file system, or an address that fsspec knows (`s3://...`)."""

    every_steps: int | None = None
    """Save when a worker has taken this many steps since the last save. Where threads step
    together (sync, half_async, hybrid) a step of all of them is one."""

    every_s: float | None = None
    """Save this many seconds after the last save, or sooner by `every_steps`."""

    each_epoch: bool = True
    """Save at the end of each epoch. The last one's is always saved."""

    keep: int = 3
    """Checkpoints that stay; older ones are removed, unless a younger one is built on them."""

    deltas_between_fulls: int = 0
    """So many saves after a full one hold only the rows changed since the one before. Larger:
    less to write, more files to read at a load. Above 0 it costs 4 bytes a row."""

    skip_while_writing: bool = True
    """A save that falls due while the one before is still being written is left out. False:
    training waits for the disk then, so that none is."""

    timeout_s: float = 3600.0
    """A save that is not written by then is given up; training goes on."""

    storage_options: Mapping[str, Any] | None = None
    """For fsspec, such as credentials; also sent to the servers."""

    def __post_init__(self) -> None:
        require(bool(os.fspath(self.directory)), self, "directory", "a path")
        if self.every_steps is not None:
            require_int(self, "every_steps", 1, 2**62)
        if self.every_s is not None:
            require_positive(self, "every_s")
        require_bool(self, "each_epoch")
        require_bool(self, "skip_while_writing")
        require_int(self, "keep", 1, 1_000_000)
        require_int(self, "deltas_between_fulls", 0, 1_000_000)
        require_positive(self, "timeout_s")
