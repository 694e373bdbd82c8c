"""Updates of a served model, published while its training goes on."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from sparsefleet.errors import PublishError, SparseFleetError
from sparsefleet.fleet.trained_tables import make_publisher
from sparsefleet.updates.publish_config import PublishConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["Publishing"]

_log = logging.getLogger("sparsefleet.train")


class Publishing:
    """What the first worker does for all: takes what changed, and has it written.

    An update that fails is logged, and goes with the next one; training goes on. Not thread-safe.
    """

    def __init__(self, distributed: DistributedModel, config: PublishConfig) -> None:
        self._publisher = make_publisher(distributed, config)
        self._writer: threading.Thread | None = None
        self.error: Exception | None = None
        """Why the last update failed; None if it did not."""

    def begin(self) -> str:
        """Takes the changes and lets a thread write them; says what it did, for the log.

        All workers must have stopped, with everything applied.
        """
        if self._writer is not None and self._writer.is_alive():
            return "skipped: the one before is still being written"
        self.wait()
        begun = time.monotonic()
        try:
            self._publisher.take()
        except (SparseFleetError, OSError) as error:
            self._failed(error)
            return f"failed: {error}"
        pause_ms = 1e3 * (time.monotonic() - begun)
        self._writer = threading.Thread(target=self._write, name="sparsefleet-publish", daemon=True)
        self._writer.start()
        return f"began, changes taken in {pause_ms:.1f} ms"

    def wait(self) -> None:
        """Returns when the update under way is published, or has failed."""
        if self._writer is not None:
            self._writer.join()  # ends: every call in it has a deadline
            self._writer = None

    def close(self) -> None:
        """Waits, and lets others publish."""
        self.wait()
        try:
            self._publisher.close()
        except SparseFleetError as error:
            _log.warning("publishing to %s: %s", self._publisher.where, error)

    def raise_last_error(self) -> None:
        """Raises PublishError if the last update failed."""
        if self.error is not None:
            raise PublishError(
                f"the last update could not be published to {self._publisher.where}: {self.error}"
            ) from self.error

    def _write(self) -> None:
        """In the background thread."""
        begun = time.monotonic()
        try:
            update = self._publisher.write()
        except Exception as error:  # the thread's edge
            self._failed(error)
            return
        self.error = None
        _log.info(
            "update %d is published: %d rows, %.2f s after their moment",
            update.sequence,
            update.num_rows,
            time.monotonic() - begun,
        )

    def _failed(self, error: Exception) -> None:
        self.error = error
        _log.error(
            "an update could not be published to %s, its changes go with the next one: %s: %s",
            self._publisher.where,
            type(error).__name__,
            error,
        )
