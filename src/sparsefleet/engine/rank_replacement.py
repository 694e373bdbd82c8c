"""Replaces a lost rank with a new process; the other ranks keep running, and one sends its state.

While all ranks are in a pass over their data, a killed rank interrupts the step of the others. The
others drop their connections and wait for the process that the launcher starts as a replacement.
Then all ranks connect again, and the rank that is furthest ahead, by at most one step, sends its
state: parameters, optimizer state and position in the training run. The new process skips the
batches that its predecessor contributed. The others repeat the interrupted step, unless the
furthest rank has completed it; in that case, the state already includes the gradients of all ranks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save

from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.engine.applied_batches import AppliedBatches
from sparsefleet.engine.batch_source import BatchFeed, DataPosition, PassStart
from sparsefleet.engine.random_state import KeptRandom
from sparsefleet.engine.record_passes import record_files
from sparsefleet.engine.training_progress import Resumed, TrainingProgress
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.incarnation import Incarnation, are_ranks_replaced
from sparsefleet.modes.collective_mode import CollectiveMode
from sparsefleet.modes.mode import Mode
from sparsefleet.nn.binding import sparse_modules
from sparsefleet.store.own_loop import replaceable_path
from sparsefleet.store.remote_store import failover_wait_s

if TYPE_CHECKING:
    from sparsefleet.engine.distributed_model import DistributedModel

__all__ = ["RankReplacement"]

_log = logging.getLogger("sparsefleet.engine")
_WAIT_S = 60.0
_PASS = 1  # for `AppliedBatches`; any number will do
_POSITION, _OPTIMIZER = "position", "optimizer"


class RankReplacement:
    """This rank's part in replacing lost ranks. Not thread-safe.

    Ranks can be replaced between the first batch of a pass and its end, in the first call to `fit`.
    Losing a rank at any other time stops the job. See docs/fault_tolerance.md.
    """

    def __init__(self, bound: DistributedModel, world: World) -> None:
        self._bound = bound
        self._world = world
        self._rank = world.rank
        self._marker = Path(replaceable_path(os.environ["SPARSEFLEET_MEMORY_DIR"], world.rank))
        self._is_new = Incarnation.from_environment().number > 0
        self._wait_s = failover_wait_s() or _WAIT_S
        self._progress: TrainingProgress | None = None
        self._randoms: list[str] = []
        self._steps_before = 0
        self._found: dict[str, Any] = {}
        self.resumed: Resumed | None = None
        """Where this process resumes if it replaces another process.

        None once training has reached that point.
        """

    @staticmethod
    def of(
        bound: DistributedModel, world: World, strategy: CollectiveStrategy
    ) -> RankReplacement | None:
        """Return an instance if this job replaces lost ranks, or None if losing a rank stops it."""
        is_simple = (
            strategy.local_sgd is None
            and not strategy.sync_batch_norm
            and strategy.gradient_merge_steps == 1
        )
        has_rows = bool(bound.role.server_endpoints or sparse_modules(bound.model))
        if not (are_ranks_replaced() and world.may_meet_again and is_simple) or has_rows:
            return None
        return RankReplacement(bound, world)

    # -- the pass --------------------------------------------------------------------------------

    def begin_pass(self, progress: TrainingProgress, feed: BatchFeed, *, pauses: bool) -> bool:
        """Return whether ranks can be replaced in this pass; all ranks get the same answer.

        pauses: whether the pass has pauses, for example for checkpoints.
        """
        mode = _collective(self._bound.mode)
        is_new, self._is_new = self._is_new, False
        if not is_new:
            mine = json.dumps(feed.position().random_at_start).encode()
            self._randoms = [each.decode() for each in self._world.all_gather_bytes(mine)]
            self._steps_before = mode.training.num_steps
        self._progress = progress
        is_by_count = record_files(feed.data) is None
        may = progress.fit == 1 and not progress.loads and not pauses and is_by_count
        if is_new and not may:
            raise ConfigError(
                f"worker {self._rank} cannot resume where the previous process stopped: its data "
                "cannot skip batches by count"
            )
        if may:
            self._marker.touch()
        return may

    def kept_random(self) -> KeptRandom:
        """Return an object that keeps torch's random state for a new process of this rank."""
        assert self._progress is not None
        path = self._marker.with_suffix(".random")
        return KeptRandom(str(path), epoch=self._progress.epoch + 1)

    def end_pass(self) -> None:
        """Record that from now on, losing this rank stops the job."""
        with contextlib.suppress(OSError):
            self._marker.unlink()

    def recover(self, error: Exception) -> bool:
        """Continue with the new process of a lost rank, after `error` has interrupted a step.

        Returns whether the furthest rank had completed that step, in which case it is not repeated.
        Raises `error` if no process replaces the lost rank.
        """
        if not self._world.may_meet_again:
            raise error
        wait_s = self._wait_s
        _log.warning(
            "waiting up to %g s for a new process to replace a lost rank: %s", wait_s, error
        )
        training = _collective(self._bound.mode).training
        steps = training.num_steps
        try:
            self._world.meet_again(wait_s=wait_s)
            self._share()
        except Exception as another:
            _log.warning("no lost rank was replaced: %s", another)
            raise error from another
        training.reconnect()
        self._continue(self._bound.mode)
        _log.warning("all ranks are connected again, after step %d", training.num_steps)
        return training.num_steps > steps

    # -- the state of the furthest ---------------------------------------------------------------

    def catch_up(self) -> bool:
        """In a process that replaces another, take the state from the other ranks.

        Return False in the first process of a rank.
        """
        if not self._is_new:
            return False
        self._share()
        found = self._found
        self._bound.meeting.continue_from(found["met"])
        self._bound.continue_schedule(found["first_step"])
        self._randoms, self._steps_before = found["randoms"], found["steps_before"]
        done = found["training"]["num_steps"] - found["steps_before"]
        applied = AppliedBatches([[(0, _PASS, 0, done)]], epoch=_PASS, kinds=(0,))
        random = json.loads(self._randoms[self._rank])
        self.resumed = Resumed(
            fit=found["fit"],
            epoch=found["epoch"],
            is_ended=False,
            start=PassStart(positions=[DataPosition(random_at_start=random)], applied=applied),
            batches=found["epoch_batches"],
            store_step=0,
            random=None,
            reports=(),
        )
        _log.warning("worker %d continues after step %d of the others", self._rank, done)
        return True

    def started(self, mode: Mode) -> None:
        """If this process replaces another, make its mode continue from the other ranks' state."""
        if self._found:
            self._continue(mode)

    def _continue(self, mode: Mode) -> None:
        found, self._found = self._found, {}
        collective = _collective(mode)
        collective.continue_from(found["mode"])
        collective.training.load_state_dict(found["training"])

    def _share(self) -> None:
        """Bring all ranks to the state of the furthest rank. Must be called by all ranks."""
        bound, steps = self._bound, -1
        if not self._is_new:
            steps = _collective(bound.mode).training.num_steps
        all_steps = [int(each) for each in self._world.all_gather_bytes(str(steps).encode())]
        furthest = max(all_steps)
        source = all_steps.index(furthest)
        if furthest < 0:
            raise ConfigError("all ranks are new, so none has any state to send: restart the job")
        mine = self._state() if source == self._rank else b""
        tensors = load(self._world.broadcast_bytes(mine, source))
        self._found = json.loads(tensors.pop(_POSITION).numpy().tobytes())
        optimizer_state = self._found.pop("optimizer")
        if steps < furthest:
            self._load(tensors, optimizer_state, with_buffers=self._is_new)

    def _state(self) -> bytes:
        bound, progress = self._bound, self._progress
        assert progress is not None
        assert bound.stepping.optimizer is not None
        mode = _collective(bound.mode)
        position = {
            "fit": progress.fit,
            "epoch": progress.epoch,
            "epoch_batches": progress.batches_before,
            "steps_before": self._steps_before,
            "randoms": self._randoms,
            "met": bound.meeting.count,
            "first_step": bound.first_step,
            "mode": mode.state(),
            "training": mode.training.state_dict(),
        }
        tensors = _named("parameter", bound.model.parameters())
        tensors |= _named("buffer", bound.model.buffers())
        position["optimizer"] = _take_tensors(
            bound.stepping.optimizer.state_dict(), tensors, _OPTIMIZER
        )
        text = json.dumps(position).encode()
        tensors[_POSITION] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        # Cloned because tensors may share memory, which the format does not allow.
        return save({name: tensor.detach().clone() for name, tensor in tensors.items()})

    def _load(
        self, tensors: Mapping[str, torch.Tensor], optimizer_state: Any, *, with_buffers: bool
    ) -> None:
        model, optimizer = self._bound.model, self._bound.stepping.optimizer
        assert optimizer is not None
        here = _named("parameter", model.parameters())
        if with_buffers:
            here |= _named("buffer", model.buffers())
        with torch.no_grad():
            for name, own in here.items():
                own.copy_(tensors[name])
        optimizer.load_state_dict(_put_tensors(optimizer_state, tensors))


def _named(kind: str, tensors: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{kind}/{number}": tensor for number, tensor in enumerate(tensors)}


def _take_tensors(state: Any, found: dict[str, torch.Tensor], name: str) -> Any:
    """Return the state as JSON values.

    Its tensors are added to `found`, under names that start with `name`.

    Dicts become lists of pairs, because the keys of an optimizer's state are numbers.
    """
    if isinstance(state, torch.Tensor):
        found[name] = state
        return {"tensor": name}
    if isinstance(state, Mapping):
        return {
            "pairs": [
                [key, _take_tensors(value, found, f"{name}/{key}")] for key, value in state.items()
            ]
        }
    if isinstance(state, list | tuple):
        return [_take_tensors(value, found, f"{name}/{i}") for i, value in enumerate(state)]
    return state


def _put_tensors(state: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `_take_tensors`: return the original state, with lists instead of tuples."""
    if isinstance(state, dict):
        if "tensor" in state:
            return tensors[state["tensor"]]
        return {key: _put_tensors(value, tensors) for key, value in state["pairs"]}
    if isinstance(state, list):
        return [_put_tensors(value, tensors) for value in state]
    return state


def _collective(mode: Mode) -> CollectiveMode:
    assert isinstance(mode, CollectiveMode)
    return mode
