"""The state that a worker's process leaves on the servers for the worker's next process.

A record on the board holds state that rarely changes: the call to `fit`, the epoch, where the pass
over the data started, and how often the workers have synchronized. The servers track the state that
changes with every step, namely which mini-batches they have applied (`AppliedBatches`); each push
says which mini-batch it belongs to.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.applied_batches import AppliedBatches
from sparsefleet.engine.batch_source import DataPosition
from sparsefleet.fleet.incarnation import Incarnation, WorkerRecord
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes.mode_setting import ModePosition
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.training_progress import TrainingProgress

__all__ = ["Succession", "TakenOver"]

_log = logging.getLogger("sparsefleet.engine")


def _file_in_memory(name: str) -> str:
    place = os.environ.get("SPARSEFLEET_MEMORY_DIR") or gettempdir()
    what = hashlib.sha256(name.encode()).hexdigest()[:24]
    return os.path.join(place, f"sparsefleet-{what}.outbox")


class TakenOver:
    """Where the previous process of this worker stopped.

    record: the record that it left. applied: the data in its pass that servers have applied.
    """

    def __init__(self, record: Mapping[str, Any], applied: AppliedBatches) -> None:
        self._record = record
        self.applied = applied
        self.fit: int = record["fit"]
        """Number of `fit` calls started."""
        self.epoch: int = record["epoch"]
        """Number of epochs finished in the last `fit`."""
        self.is_ended: bool = record["is_ended"]
        """Whether the last `fit` is finished."""
        self.is_in_pass: bool = record["position"] is not None
        """Whether that process was in a pass over the data."""
        self.has_left: bool = record["has_left"]
        """Whether its threads have left their last pass and have not started another."""
        self.batches: int = record["batches"]
        """Number of mini-batches trained on before the pass."""
        self.random: Mapping[str, Any] | None = record["random"]
        """The state of the random generators at the start of the pass or at its last pause."""
        self.starts: int = record["starts"]
        self.first_step: int = record["first_step"]
        self.shared_at: int = record["shared_at"]
        self.saves: Mapping[str, Any] | None = record["saves"]
        self.owned: str | None = record["owned"]
        """The checkpoint directory that the run owns."""
        self.has_begun: bool = record["has_begun"]
        """Whether that process had resumed from a checkpoint, if it was asked to."""
        self.loads: list[int] = record["loads"]
        self.fits: list[int] = record["fits"]
        self.started_at: int = record["started_at"]
        self.met: int = record["met"]
        """How often the workers had synchronized."""
        self.is_closed: bool = record["is_closed"]
        """Whether that process was about to leave the other workers for good, or had left them."""

    @property
    def position(self) -> DataPosition | None:
        """Return where the previous process's pass over the data started; None between passes."""
        found = self._record["position"]
        return None if found is None else DataPosition.from_json(found)

    @property
    def mode_position(self) -> ModePosition:
        """Return the state of the previous process's mode."""
        batches = self.applied.count - self._record["done"] if self.is_in_pass else 0
        return ModePosition(
            state=self._record["mode"],
            batches=max(0, batches),
            next_round=self.applied.next_round if self.is_in_pass else None,
            has_partial_round=self.is_in_pass and self.applied.has_partial_round,
        )

    @property
    def store_step(self) -> int:
        """Return the number of pushes that the previous process made, if known."""
        at = self.mode_position
        before = at.count("rounds")
        since = at.batches if at.next_round is None else at.next_round - before
        return int(self._record["store_step"]) + since


class Succession:
    """Keeps one worker's record of a training run on the board. Not thread-safe."""

    def __init__(self, store: RemoteStore, role: RoleInfo, incarnation: Incarnation, name: str):
        self.incarnation = incarnation
        """Identifies this process among the successive processes of its rank."""
        who = f"{incarnation.job}/{name}/worker-{role.index}"
        self._record = WorkerRecord(store, who)
        self.outbox = _file_in_memory(who)
        """A file shared by successive processes of this rank on this machine."""
        self._store = store
        self._fields: dict[str, Any] = {
            "fit": 0,
            "epoch": 0,
            "is_ended": False,
            "has_left": False,
            "has_begun": False,
            "position": None,
            "pass": 0,
            "done": 0,
            "batches": 0,
            "random": None,
            "saves": None,
            "owned": None,
            "loads": [],
            "fits": [],
            "is_closed": False,
        }
        self._found: dict[str, Any] | None = None
        if incarnation.is_successor:
            self._found = self._record.read()
            outcome = (
                "continues"
                if self._found
                else "starts over, since the previous process left no state"
            )
            if self._found or incarnation.is_counted:
                _log.warning("worker %d, restart %d: %s", role.index, incarnation.number, outcome)
        self.taken: TakenOver | None = None
        """Where the previous process stopped.

        None if there was no such process, or once training has reached that point.
        """

    @property
    def pass_number(self) -> int:
        """Return the number of the last pass; later passes have larger numbers."""
        return int(self._fields["pass"])

    def keep_session(self, keeps: bool) -> None:
        """Set whether the next process may continue this session once it is closed.

        The next process may continue after an error, just as after a kill, since the servers
        remember what was applied and the other workers wait.
        """
        self._store.keep_session(keeps)

    def take_over(self, kinds: tuple[int, ...]) -> TakenOver | None:
        """Return where the previous process stopped, or None if it left no state.

        kinds: the mode's streams; see `Mode.data_streams`.
        """
        if self._found is None:
            return None
        self._fields.update(self._found)
        self.taken, self._found = TakenOver(self._found, self._applied(kinds)), None
        self._store.step = self.taken.store_step
        return self.taken

    def look_again(self, kinds: tuple[int, ...]) -> None:
        """Ask the servers again what they have applied.

        The mode may since have sent data that its predecessor had kept.
        """
        if self.taken is not None:
            self.taken.applied = self._applied(kinds)

    def _applied(self, kinds: tuple[int, ...]) -> AppliedBatches:
        found = self._store.applied_data()
        return AppliedBatches(found, epoch=self._fields["pass"], kinds=kinds)

    # -- state for the next process ---------------------------------------------------------------

    def started(self, distributed: BoundModel, *, starts: int, first_step: int, at: int) -> None:
        """Record that the model has started, perhaps not for the first time.

        at: the number of times the workers had synchronized before they shared the model's values.
        """
        self.keep_session(False)  # after an error, training may start again here
        self._write(
            distributed,
            starts=starts,
            first_step=first_step,
            shared_at=at,
            started_at=distributed.meeting.count,
        )

    def begun(self, distributed: BoundModel, progress: TrainingProgress) -> None:
        """Record that training has started, or has resumed from a checkpoint."""
        self._write(distributed, has_begun=True, batches=progress.batches)

    def loaded(self, distributed: BoundModel) -> None:
        """Record that the user loaded a checkpoint."""
        self._write(distributed, loads=[*self._fields["loads"], distributed.meeting.count])

    def begin_pass(
        self, distributed: BoundModel, progress: TrainingProgress, num_batches: int | None
    ) -> None:
        """Start a pass over the data, before any batch is handed out.

        num_batches: the number of batches in the pass, if known.
        """
        assert progress.feed is not None
        number = (progress.fit << 32) + progress.epoch + 1  # larger than in earlier passes
        progress.feed.keep_account(number)
        self._write(
            distributed,
            **self._place(progress),
            **{"pass": number},
            position=progress.feed.position().to_json(),
            num_batches=num_batches,
            files=getattr(progress.feed.data, "own_files", None),
            batches=progress.batches,
            done=0,
            has_left=False,
        )

    def paused(self, distributed: BoundModel, done: int, saves: Mapping[str, Any]) -> None:
        """Record that all workers have paused in a pass with `done` batches applied."""
        self._write(distributed, done=done, saves=saves)
        begun = self._fields["fits"][-1] if self._fields["fits"] else self._fields["started_at"]
        distributed.meeting.drop_calls(begun, distributed.meeting.count)

    def end_fit(self, distributed: BoundModel, progress: TrainingProgress) -> None:
        """Record that a call to `fit` is finished."""
        self._write(
            distributed,
            **self._place(progress) | {"is_ended": True},
            position=None,
            has_left=True,
            batches=progress.batches,
            fits=[*self._fields["fits"], distributed.meeting.count],
        )

    def closes(self) -> None:
        """Record that this worker leaves for good.

        Once all workers have left, the servers forget the group, and a new process must not wait in
        it for the others.
        """
        if "starts" in self._fields:
            self._fields["is_closed"] = True
            self._record.write(self._fields)

    def owns(self, owned: str) -> None:
        """Record which checkpoint directory the run owns; written with the next record."""
        self._fields["owned"] = owned

    def _place(self, progress: TrainingProgress) -> dict[str, Any]:
        return {"fit": progress.fit, "epoch": progress.epoch, "is_ended": False}

    def _write(self, distributed: BoundModel, **fields: Any) -> None:
        self._fields.update(
            fields,
            met=distributed.meeting.count,
            mode=distributed.mode.state(),
            store_step=distributed.store.step,
            random=distributed.random_state(),
        )
        self._record.write(self._fields)
