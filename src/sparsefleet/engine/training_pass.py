"""One pass over the data by all threads of this worker."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from sparsefleet.engine.batch_source import BatchFeed, BatchSource
from sparsefleet.engine.batch_supply import (
    BatchSupply,
    DirectSupply,
    PrefetchingSupply,
    SteppingSupply,
    Supplied,
)
from sparsefleet.engine.clock import StepClock, TimeShares
from sparsefleet.engine.events import (
    Events,
    PassBegan,
    PassResult,
    PassView,
    StepDone,
)
from sparsefleet.engine.notice import HandoverPauses, Notice
from sparsefleet.engine.random_state import KeptRandom
from sparsefleet.engine.saving import PausePoint, SaveCoordinator
from sparsefleet.engine.step import StepPosition
from sparsefleet.engine.thread_team import ThreadTeam, add_note
from sparsefleet.engine.training_progress import TrainingProgress
from sparsefleet.engine.workload import Batch, Outcome, Runner, Workload
from sparsefleet.errors import NotFoundError, RpcError
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.rank_replacement import RankReplacement
    from sparsefleet.engine.succession import Succession

__all__ = ["InferencePass", "LoopConfig", "TrainingPass"]

_log = logging.getLogger("sparsefleet.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """How the engine runs the threads of a worker; each API derives it from its own settings."""

    torch_threads: int = 1
    """Number of threads that torch uses inside each training thread."""

    prefetch: bool | None = None
    """Read the next batch, and fetch its rows, while the current batch computes. If None, prefetch
    only if the rows are on servers, in the way that suits the mode.
    """

    window_batches: int = 1
    """Number of recent batches per thread whose outcomes displays can still see."""

    stop_timeout_s: float = 30.0
    """Seconds that other threads have to leave their step after a thread has failed."""

    quiet: bool = False
    """Do not print anything about resuming."""


class TrainingPass:
    """Trains on all batches of a source once. Created for one pass."""

    def __init__(
        self,
        distributed: BoundModel,
        workload: Workload,
        config: LoopConfig,
        events: Events,
        *,
        epoch: int,
        epochs: int,
    ) -> None:
        self._distributed = distributed
        self._workload = workload
        self._config = config
        self._events = events
        self._epoch = epoch
        self._epochs = epochs
        self._stopped = threading.Event()
        runners = workload.runners(distributed.threads)
        self._threads = [
            _TrainingThread(
                distributed,
                workload,
                runner,
                StepClock(config.window_batches),
                events,
                StepPosition(epoch, distributed.role.index, index, 0),
            )
            for index, runner in enumerate(runners)
        ]

    def run(
        self,
        source: BatchSource,
        *,
        progress: TrainingProgress,
        saves: SaveCoordinator | None = None,
        notice: Notice | None = None,
    ) -> tuple[PassView, PassResult]:
        """Run until all threads have run out of data. After an error, the mode has failed too.

        progress: the position at which the pass starts.
        saves: the pauses in the pass.
        notice: stops the pass if this process is asked to exit, unless `saves` does so.
        """
        start, random = progress.take_start()
        feed = progress.feed = source.begin_pass(start)
        if random is not None:
            self._distributed.set_random_state(random)
        succession = self._distributed.succession
        if succession is not None and feed.applied is None:
            succession.begin_pass(self._distributed, progress, source.num_batches)
        if succession is not None and self._distributed.mode.steps_together == "workers":
            self._keep_random(succession)
        if self._epoch == 1:
            _warn_of_same_files(self._distributed, feed.data)
        pauses = self._pause_point(saves, notice)
        replacement = self._distributed.replacement
        if replacement is not None and replacement.begin_pass(
            progress, feed, pauses=pauses is not None
        ):
            self._threads[0].replacement = replacement
            self._threads[0].random = replacement.kept_random()
        view = PassView(
            epoch=self._epoch,
            epochs=self._epochs,
            num_batches=source.num_batches,
            clocks=[thread.clock for thread in self._threads],
            stats_before=self._distributed.mode.stats(),
            reading=source.reading,
        )
        try:
            self._events.emit(PassBegan(view))
            self._run_threads(feed, pauses)
        except BaseException:
            feed.close()
            raise
        finally:
            if replacement is not None:
                replacement.end_pass()
        seconds = time.monotonic() - view.begun
        waited_s = self._distributed.mode.stats().wait_seconds - view.stats_before.wait_seconds
        counted = view.total()
        if feed.taken == 0 and start is None:
            _log.warning(
                "epoch %d: worker %d got no batches from its data, so it trained on nothing",
                self._epoch,
                self._distributed.role.index,
            )
        return view, PassResult(
            epoch=self._epoch,
            examples=counted.examples,
            steps=counted.steps,
            skipped=counted.skipped,
            seconds=seconds,
            loss=counted.loss,
            reading=source.reading.so_far(),
            time_shares=TimeShares.of(counted, waited_s),
        )

    def _keep_random(self, succession: Succession) -> None:
        """Keep the random state for a new process, unless the result depends on thread timing."""
        if len(self._threads) == 1:
            path = f"{succession.outbox}.random"
            self._threads[0].random = KeptRandom(path, epoch=succession.pass_number)

    def _pause_point(
        self, saves: SaveCoordinator | None, notice: Notice | None
    ) -> PausePoint | None:
        if saves is not None:
            return saves.begin_pass(len(self._threads))
        if notice is None:
            return None
        return PausePoint(
            len(self._threads),
            HandoverPauses(self._distributed, notice),
            steps_together=self._distributed.mode.steps_together != "nobody",
            wait_s=self._distributed.wait_s,
        )

    def run_left(self, feed: BatchFeed | None) -> None:
        """Train on the rest of a lost worker's data, or, if there is none, wait for the workers
        that have some."""
        empty = BatchFeed(iter(()), self._workload.as_batch)
        self._run_threads(feed or empty, None)

    def _run_threads(self, feed: BatchFeed, pauses: PausePoint | None) -> None:
        def run(index: int) -> None:
            thread = self._threads[index]
            thread.run(self._supply(feed, thread.clock), pauses)

        def stop_the_others(error: BaseException) -> None:
            self._stopped.set()
            feed.stop()
            if pauses is not None:
                pauses.fail(error)
            self._distributed.fail(error)

        team = ThreadTeam(
            len(self._threads),
            torch_threads=self._config.torch_threads,
            stop_timeout_s=self._config.stop_timeout_s,
        )
        team.run(run, stop_the_others)

    def _supply(self, feed: BatchFeed, clock: StepClock) -> BatchSupply:
        model, lookups, wanted = self._distributed, self._workload, self._config.prefetch
        if wanted is None and isinstance(model.store, RemoteStore):
            if model.mode.brings_rows:
                return SteppingSupply(feed, clock, lambda inputs: model.plan_ahead(inputs, lookups))
            wanted = model.mode.may_prefetch
        if not wanted:
            return DirectSupply(feed, clock)
        return PrefetchingSupply(
            feed, clock, lambda inputs: model.prefetch(inputs, lookups), self._stopped
        )


class _TrainingThread:
    """The loop of one thread: take a batch, run a step, repeat. Not thread-safe."""

    def __init__(
        self,
        distributed: BoundModel,
        workload: Workload,
        runner: Runner,
        clock: StepClock,
        events: Events,
        place: StepPosition,
    ) -> None:
        self.clock = clock
        self._distributed = distributed
        self._workload = workload
        self._runner = runner
        self._events = events
        self._on_step = events.listener(StepDone)
        self._place = place
        self.random: KeptRandom | None = None
        """Keeps the random state for a process that replaces this one."""
        self.replacement: RankReplacement | None = None
        """Recovers when another rank is lost."""

    def run(self, supply: BatchSupply, pauses: PausePoint | None) -> None:
        """Run to the end of the data, then notify the mode."""
        clock = self.clock
        begun = perf_counter()
        supplied: Supplied | None = None
        try:
            while (supplied := self._next_batch(supply, pauses)) is not None:
                self._train_or_recover(supplied, supply)
                supplied = None  # an error in the data must not be blamed on the previous batch
            self._leave_or_recover()
            if pauses is not None:
                pauses.leave()
            if self.random is not None:
                self.random.close()
        except Exception as error:
            at = "" if supplied is None else f", batch {supplied.batch.number}"
            add_note(error, f"raised in training: {self._next_place()}{at}")
            raise
        finally:
            clock.elapsed_s = perf_counter() - begun
            supply.close()

    def _next_place(self) -> StepPosition:
        epoch, worker, thread, _ = self._place
        return StepPosition(epoch, worker, thread, self.clock.steps + self.clock.skipped + 1)

    def _next_batch(self, supply: BatchSupply, pauses: PausePoint | None) -> Supplied | None:
        may_read_ahead = True
        if pauses is not None:
            begun = perf_counter()
            may_read_ahead = pauses.reach(self.clock.steps, has_ahead=supply.has_ahead)
            self.clock.save_s += perf_counter() - begun
        return supply.take(read_ahead=may_read_ahead)

    def _train_or_recover(self, supplied: Supplied, supply: BatchSupply) -> None:
        """Take a step. If a lost rank interrupts the step, repeat it once the rank is replaced.

        The step is not repeated if another rank had completed it.
        """
        if self.replacement is None:
            self._train_on(supplied, supply)
            return
        random = torch.get_rng_state()
        module = self._runner.module
        buffers = [] if module is None else [(each, each.clone()) for each in module.buffers()]
        while True:
            try:
                self._train_on(supplied, supply)
                return
            except RpcError as error:
                if self.replacement.recover(error):
                    self.clock.steps += 1
                    return
                torch.set_rng_state(random)
                for buffer, before in buffers:  # running means already include this batch
                    buffer.copy_(before)

    def _leave_or_recover(self) -> None:
        while True:
            try:
                self._distributed.leave()
                return
            except RpcError as error:
                if self.replacement is None:
                    raise
                self.replacement.recover(error)

    def _train_on(self, supplied: Supplied, supply: BatchSupply) -> None:
        batch, pulled = supplied
        clock = self.clock
        place = self._next_place()
        begun = perf_counter()
        with self._distributed.step(
            self._runner.module,
            batch=batch.inputs,
            pulled=pulled,
            lookups=self._workload,
            ahead=supply,
            place=place,
            origin=supply.feed.origin(batch.number),
        ) as step:
            entered = perf_counter()
            if self.random is not None:
                self.random.begin(batch.number)
            outcome = self._runner.train(batch, step)
            if self.random is not None:
                self.random.end(batch.number)
            computed = perf_counter()
        clock.hand_over_s += step.hand_over_s
        clock.compute_s += computed - entered
        clock.pull_s += entered - begun
        if step.is_skipped:
            clock.skipped += 1
        else:
            clock.steps += 1
            clock.examples += outcome.size
            clock.loss_sum += outcome.loss * outcome.size
            clock.recent.append(outcome)
        if self._on_step is not None:
            self._on_step(StepDone(place, outcome, step.is_skipped))
        if self._events.posted:
            self._events.deliver()


class InferencePass:
    """Runs the forward pass on all batches of a source, in all threads; rows are read but not
    created."""

    def __init__(self, distributed: BoundModel, workload: Workload, config: LoopConfig) -> None:
        self._distributed = distributed
        self._workload = workload
        self._config = config

    def run(
        self,
        source: BatchSource,
        use: Callable[[int, Batch, Outcome], None],
        *,
        in_order: bool = False,
    ) -> None:
        """Call `use(thread, batch, outcome)` for each batch, in the thread that ran it.

        in_order: whether the caller needs outcomes in the order of the batches; warns if the data
        has no order.
        """
        feed = source.begin_pass()
        if in_order and getattr(feed.data, "keeps_order", True) is False:
            _log.warning(
                "predictions come in the order of the batches, but this data returns batches in "
                "arbitrary order: read with threads=1 and without sharding to keep the order of "
                "the files"
            )
        runners = self._workload.runners(self._distributed.threads)

        def run(thread: int) -> None:
            self._run_thread(feed, runners[thread], lambda batch, out: use(thread, batch, out))

        def stop_the_others(error: BaseException) -> None:
            del error
            feed.stop()

        team = ThreadTeam(
            len(runners),
            torch_threads=self._config.torch_threads,
            stop_timeout_s=self._config.stop_timeout_s,
        )
        try:
            team.run(run, stop_the_others)
        except BaseException:
            feed.close()
            raise

    def _run_thread(
        self, feed: BatchFeed, runner: Runner, use: Callable[[Batch, Outcome], None]
    ) -> None:
        model, lookups = self._distributed, self._workload
        while (batch := feed.take()) is not None:
            try:
                with model.evaluating(runner.module, batch=batch.inputs, lookups=lookups):
                    use(batch, runner.infer(batch))
            except Exception as error:
                add_note(error, f"raised in batch {batch.number} of the data to predict")
                raise


def _warn_of_same_files(distributed: BoundModel, data: object) -> None:
    """Log a warning if the previous or next worker reads the same files.

    Each worker leaves a note and checks the notes of its two neighbors. No worker waits; the last
    worker to arrive notices the problem.
    """
    role, board = distributed.role, distributed.board
    files: list[str] | None = getattr(data, "own_files", None)
    if role.worker_num == 1 or not files:
        return
    mine = hashlib.sha256("\n".join(sorted(files)).encode()).digest()
    board.put_note(_files_note(role.index), mine)
    for other in {(role.index + step) % role.worker_num for step in (-1, 1)} - {role.index}:
        try:
            theirs = board.get_note(_files_note(other))
        except NotFoundError:
            continue
        if theirs == mine:
            _log.warning(
                "workers %d and %d read the same %d file(s), the first of which is %s: each "
                "record is trained on more than once per epoch. Give each worker its part: "
                "Reader(..., worker_index=, worker_num=), fleet.split_files, or "
                "sharding=fleet.sharding(name)",
                *sorted((role.index, other)),
                len(files),
                files[0],
            )
            return


def _files_note(worker: int) -> str:
    return f"train/files/{worker}"
