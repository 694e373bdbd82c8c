"""When a training publishes its changes, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sparsefleet.field_checks import require, require_int, require_positive

__all__ = ["PublishConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishConfig:
    """Updates of an exported model that is served while its training goes on.

    >>> PublishConfig(model="export", target="updates", every_s=1.0).deltas_between_wholes
    100
    """

    model: str | os.PathLike[str]
    """The export that is served. Updates are what has changed since it was written; they fit no
    other one. The first worker reads it."""

    target: str | os.PathLike[str]
    """A directory that services see, or `redis://host:port/database?model=NAME`."""

    every_steps: int | None = None
    """Publish when a worker has taken this many steps since it was done last. Where threads step
    together (sync, half_async, hybrid) a step of all of them is one."""

    every_s: float | None = None
    """Publish this many seconds after it was done last, or sooner by `every_steps`. The end of
    `fit` is always published."""

    deltas_between_wholes: int = 100
    """After so many updates, one is written that holds all changes since the export: services
    that start, or have missed one, begin with it. Larger: less to write, more files to read."""

    def __post_init__(self) -> None:
        require(bool(os.fspath(self.model)), self, "model", "a path")
        require(bool(os.fspath(self.target)), self, "target", "a path or redis://...")
        if self.every_steps is not None:
            require_int(self, "every_steps", 1, 2**62)
        if self.every_s is not None:
            require_positive(self, "every_s")
        require_int(self, "deltas_between_wholes", 1, 1_000_000)
