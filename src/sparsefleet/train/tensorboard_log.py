"""The figures of a training as TensorBoard reads them; the package is an extra."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import RoleInfo
from sparsefleet.train.progress import Snapshot

__all__ = ["TensorBoardLog", "open_tensorboard"]


def open_tensorboard(
    directory: str | os.PathLike[str] | None, role: RoleInfo
) -> TensorBoardLog | None:
    """A log in that directory, in the first worker; None elsewhere, or if none is wanted."""
    if directory is None or not role.is_first_worker:
        return None
    return TensorBoardLog(directory)


class TensorBoardLog:
    """Writes scalars to a directory; x is the number of examples."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"TrainerConfig.tensorboard is {os.fspath(directory)!r}, but TensorBoard is not "
                f"installed ({error}): pip install sparsefleet[tensorboard]"
            ) from error
        self._writer: Any = SummaryWriter(os.fspath(directory))

    def write(self, snapshot: Snapshot, examples_before: int) -> None:
        """Figures while training."""
        values: dict[str, float | None] = {
            "train/loss": snapshot.loss,
            **{f"train/{name}": value for name, value in snapshot.metrics.items()},
            "speed/examples_per_s": snapshot.examples_per_s,
            "speed/pull_ms": snapshot.pull_ms,
            "speed/push_ms": snapshot.push_ms,
            "fleet/rows": snapshot.rows,
            "fleet/staleness": snapshot.staleness,
            "fleet/sent_mb": snapshot.sent_mb,
            "data/bad_lines": snapshot.bad_lines or None,
        }
        self._write(values, examples_before + snapshot.examples)

    def write_validation(self, figures: Mapping[str, float], examples: int) -> None:
        """Figures of the validation data."""
        self._write({f"validation/{name}": value for name, value in figures.items()}, examples)

    def _write(self, values: Mapping[str, float | None], at: int) -> None:
        for name, value in values.items():
            if value is not None and not math.isnan(value):
                self._writer.add_scalar(name, value, at)

    def close(self) -> None:
        self._writer.close()
