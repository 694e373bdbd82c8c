"""Where a model's dense parameters live, who updates them, and how workers get equal values."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.dense_groups import (
    DenseGroup,
    OptimizerLike,
    describe_optimizer,
    require_local,
    warn_of_unused_state,
)
from sparsefleet.engine.model_checkpoint import LoadRequest, load_model
from sparsefleet.engine.model_tensors import FrozenState, ModelTensors
from sparsefleet.errors import NotFoundError, PeerLostError
from sparsefleet.fleet.board import directory_of_servers
from sparsefleet.fleet.incarnation import Incarnation
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import ModeConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import RankSetting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sparsefleet.engine.distributed_model import DistributedModel
    from sparsefleet.fleet.board import Board
    from sparsefleet.store import Store
    from sparsefleet.store.remote_store import WireDtype

__all__ = ["StorePlacement", "warn_of_older_tables"]

_log = logging.getLogger("sparsefleet.engine")

_JOB_NOTE = "sparsefleet/job"
_THIS_JOB = secrets.token_hex(8)  # incarnation of this process


class StorePlacement:
    """Keeps dense parameters in tables of the store, which updates them; workers fetch the values.

    With the other placement, `RankPlacement`, every worker holds and steps all parameters. A
    `DistributedModel` calls its placement at each point where the two placements differ. Methods
    take the model as `bound`; a placement stores only its own state.
    """

    # -- made with the model -------------------------------------------------------------------

    def own_optimizer(self, model: nn.Module, optimizer: OptimizerLike) -> OptimizerLike:
        """Return the optimizer to use instead of the user's."""
        warn_of_unused_state(model, optimizer)
        return optimizer

    def wire_dtype(self, requested: WireDtype | None) -> WireDtype | None:
        """Return the number format used on the network; see `RemoteStoreConfig.wire_dtype`."""
        return requested

    def groups_by_torch(
        self, groups: Sequence[DenseGroup], role: RoleInfo, mode: str | ModeConfig
    ) -> list[DenseGroup]:
        """Return the groups that torch steps in this process."""
        found = [group for group in groups if group.optimizer is None]
        require_local(found, role, mode)
        return found

    def flattened(self, groups: Sequence[DenseGroup]) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that become views of flat buffers, by dense table."""
        return {group.table: group.parameters for group in groups}

    def tensors(
        self,
        model: nn.Module,
        groups: Sequence[DenseGroup],
        in_tables: Mapping[str, Sequence[str]],
        stepped_by: torch.optim.Optimizer | None,
    ) -> ModelTensors:
        """Return the dense tensors by name, as stored in checkpoints."""
        del groups
        return ModelTensors(model, in_tables, stepped_by)

    def table_default(
        self, groups: Sequence[DenseGroup], optimizer: OptimizerLike
    ) -> optim.Optimizer | None:
        """Return the optimizer for tables that have none, or None if only torch implements it."""
        if groups:
            return groups[0].optimizer
        if isinstance(optimizer, torch.optim.Optimizer):  # all of its parameters are frozen
            return describe_optimizer(optimizer, optimizer.param_groups[0])
        return optimizer if isinstance(optimizer, optim.Optimizer) else None

    # -- life ---------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device | None:
        """Return the device for batches, or None to keep them on the CPU."""
        return None

    def continues_without_lost(self) -> bool:
        """Return whether the job continues without lost workers."""
        return os.environ.get("SPARSEFLEET_KEEP_GOING") == "1"

    def incarnation(self) -> Incarnation:
        """Return the `Incarnation` of this process: how many processes it replaces, and its job."""
        return Incarnation.from_environment()

    def join(self, bound: DistributedModel) -> None:
        """Connect to the other workers, before the store is opened."""

    def board(self, store: Store) -> Board:
        """Return the board where workers leave notes for each other."""
        return store

    def rank_setting(self, bound: DistributedModel) -> RankSetting | None:
        """Return the additional settings for mode "collective"; None in any other mode."""
        del bound
        return None

    def write_first_values_once(self, bound: DistributedModel) -> None:
        """Write the initial values, unless a previous process of this worker has written them.

        In that case, other workers may already be training.
        """
        note = f"first-values/{bound.meeting.name}"
        try:
            bound.board.get_note(note)
        except NotFoundError:
            self.write_first_values(bound)
            if bound.succession is not None and bound.role.is_first_worker:
                bound.board.put_note(note, b"written")

    def write_first_values(self, bound: DistributedModel) -> None:
        """Write the first worker's values, or the values that servers should load, to the store."""
        if not bound.role.is_first_worker:
            return
        directory = directory_of_servers(bound.store)
        if directory is not None:
            self.read_checkpoint(bound, LoadRequest(directory))
            return
        bound.write_dense()

    def share_values(self, bound: DistributedModel) -> None:
        """Send all workers the store's values and the first worker's buffers and frozen values."""
        frozen = FrozenState(bound.model, bound.groups)
        role = bound.role
        mine = bound.first_step.to_bytes(8, "little") + role.index.to_bytes(4, "little")
        if role.is_first_worker and not bound.meeting.is_alone:
            mine += frozen.to_bytes()
        gathered = bound.meeting.all_gather(mine)
        bound.continue_schedule(max(int.from_bytes(part[:8], "little") for part in gathered))
        if int.from_bytes(gathered[0][8:12], "little") != 0:
            raise PeerLostError(
                "worker 0 was lost before it sent the initial values of the model: restart the job"
            )
        if not role.is_first_worker:
            frozen.take(gathered[0][12:])
        bound.fetch_dense()
        bound.meeting.barrier()  # nobody trains until all have the same values

    def started(self, mode: Mode) -> None:
        """Called after the mode has started."""

    def finishing(self, mode: Mode) -> None:
        """Called before a mode that did not fail finishes."""

    def settled(self, bound: DistributedModel) -> None:
        """Called on all workers once all updates are applied."""

    def failed(self, error: BaseException) -> None:
        """Called when a thread of this worker failed."""

    # -- files --------------------------------------------------------------------------------

    def load(self, bound: DistributedModel, request: LoadRequest) -> None:
        """Load a checkpoint. Must be called by all workers; all raise if it fails."""

        def load(_: list[bytes]) -> bytes:
            """Load in the first worker, when no push is outstanding."""
            self.read_checkpoint(bound, request)
            return b""

        if bound.meeting.decide(b"", load) is None:
            raise PeerLostError(
                f"{os.fspath(request.directory)} was not loaded: worker 0, which loads for all "
                "workers, is lost"
            )

    def read_checkpoint(
        self, bound: DistributedModel, request: LoadRequest, *, with_tables: bool = True
    ) -> None:
        """Read a checkpoint in this worker, including its schedule."""
        bound.continue_schedule(load_model(bound, request, with_tables=with_tables))

    def collect(self) -> None:
        """Before a save, send the first worker any state that only other workers have.

        Must be called by all workers.
        """

    def notes_to_save(self, mode: Mode, groups: Sequence[DenseGroup]) -> dict[str, Any]:
        """Return the JSON data that a checkpoint stores besides tensors and tables."""
        del mode, groups
        return {}

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore the data that `notes_to_save` put into the checkpoint that is being loaded."""

    def fitted(self, tensors: dict[str, NDArray[Any]], rank: int) -> dict[str, NDArray[Any]]:
        """Return the tensors in a checkpoint in the form that worker `rank` needs."""
        del rank
        return tensors


def warn_of_older_tables(store: Store, tables: Iterable[str]) -> None:
    """Log a warning if servers still hold rows of these tables from an earlier job.

    Servers that were started by hand outlive a job, and the next job would silently continue with
    its rows. Rows that a server loaded on startup belong to this job. Call it on one worker.
    """
    try:
        before = store.get_note(_JOB_NOTE).decode()
    except NotFoundError:
        before = _THIS_JOB
    store.put_note(_JOB_NOTE, _THIS_JOB.encode())
    rows = {name: store.info(name).size for name in tables} if before != _THIS_JOB else {}
    found = ", ".join(f"'{name}' ({count:,} rows)" for name, count in rows.items() if count)
    if found:
        _log.warning(
            "the servers hold tables from an earlier job, and this one continues with them: %s. "
            "To start from scratch, restart the servers or use different table names",
            found,
        )
