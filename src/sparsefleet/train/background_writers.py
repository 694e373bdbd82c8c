"""What a training writes in the background: checkpoints, and updates of a served model."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.checkpoint_series import CheckpointSeries
from sparsefleet.train.publishing import Publishing
from sparsefleet.updates.publish_config import PublishConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["BackgroundWriters"]


class BackgroundWriters:
    """Those of one Trainer, from its first `fit` on. In workers other than the first they write
    nothing."""

    def __init__(
        self,
        distributed: DistributedModel,
        checkpoints: CheckpointConfig | None,
        publish: PublishConfig | None,
    ) -> None:
        self._distributed = distributed
        self.checkpoints = checkpoints
        self.publish = publish
        self._are_open: list[CheckpointSeries | Publishing] = []
        if checkpoints is not None:
            self._are_open.append(self.series)
        if publish is not None and distributed.role.is_first_worker:
            self._are_open.append(self.publishing)

    @cached_property
    def series(self) -> CheckpointSeries:
        """Writes checkpoints; there with `checkpoints`."""
        assert self.checkpoints is not None
        return CheckpointSeries(self._distributed, self.checkpoints)

    @cached_property
    def publishing(self) -> Publishing:
        """Writes updates; in the first worker, there with `publish`."""
        assert self.publish is not None
        return Publishing(self._distributed, self.publish)

    def wait(self) -> None:
        """Returns when what is under way is written, or has failed."""
        for writer in self._are_open:
            writer.wait()

    def close(self) -> None:
        """Waits, and lets others publish."""
        self.wait()
        if self.publish is not None and self.publishing in self._are_open:
            self.publishing.close()

    def raise_last_error(self) -> None:
        """Raises CheckpointError or PublishError if the last one of its kind failed."""
        for writer in self._are_open:
            writer.raise_last_error()
