"""An export that all workers ask for and wait for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsefleet.errors import ExportError, SparseFleetError

if TYPE_CHECKING:
    from sparsefleet.export import Manifest
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["export_together"]


def export_together(
    distributed: DistributedModel,
    directory: str | os.PathLike[str],
    write: Callable[[], Manifest],
) -> Manifest | None:
    """Has the first worker `write` when all have settled; all call it. Its manifest, there only.

    Where it cannot be written, raises on every worker.
    """
    distributed.settle()
    manifest: Manifest | None = None
    failure: Exception | None = None
    if distributed.role.is_first_worker:
        try:
            manifest = write()
        except (SparseFleetError, OSError) as error:
            failure = error

    def tell(_: list[bytes]) -> bytes:
        if failure is not None:
            raise failure
        return b"exported"

    if distributed.meeting.decide(b"", tell, patient=True) is None:
        raise ExportError(f"worker 0 was lost while it exported to {os.fspath(directory)}")
    return manifest
