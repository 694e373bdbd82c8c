"""Run programs over the batches of a Dataset, using the training engine."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsefleet.engine.batch_source import BatchSource
from sparsefleet.engine.clock import advise
from sparsefleet.engine.events import Events, PassBegan, PassView, Periodic, StepDone
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.training import Training
from sparsefleet.engine.training_pass import LoopConfig
from sparsefleet.engine.training_progress import TrainingProgress, check_resume
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.fetch_printing import FetchPrinter, print_fetched
from sparsefleet.fluid.executor.program_workload import Lower, ProgramWorkload
from sparsefleet.fluid.executor.scope_model import ScopeModel
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.lowering.lowered import OpTimes, RunResult
from sparsefleet.store import RemoteStore
from sparsefleet.train.history import Epoch, History, summary_lines, summary_table
from sparsefleet.train.progress import ProgressReporter, make_display
from sparsefleet.train.scoring import Scorer
from sparsefleet.train.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = [
    "DatasetRun",
    "FetchHandler",
    "FetchHandlerMonitor",
    "Fetching",
    "Saving",
    "check_no_updates",
]

_CHECKPOINTS = "SPARSEFLEET_FLUID_CHECKPOINTS"
_SECONDS = "SPARSEFLEET_FLUID_CHECKPOINT_SECONDS"
_PROGRESS = "SPARSEFLEET_FLUID_PROGRESS"
_DEFAULT_SECONDS = 600.0
_SHOWN = TrainerConfig()  # the same progress interval and window as in a Trainer


class FetchHandler:
    """Periodically receives the values of variables; subclasses override `handler`.

    var_dict: a dict from key to variable, or the name of one variable.
    period_secs: seconds between two calls.
    """

    def __init__(
        self, var_dict: Mapping[str, Any] | str | None = None, period_secs: float = 60
    ) -> None:
        if var_dict is None:
            raise AssertionError("FetchHandler needs var_dict, a dict of key -> variable")
        self.var_dict = {var_dict: var_dict} if isinstance(var_dict, str) else dict(var_dict)
        self.period_secs = period_secs

    def help(self) -> None:
        """Print an example of a class derived from FetchHandler."""
        print(
            "class Handler(FetchHandler):\n"
            "    def handler(self, res_dict):\n"
            '        print(res_dict["auc"])\n\n'
            'handler = Handler(var_dict={"auc": auc_variable}, period_secs=5)'
        )

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Handle the fetched arrays, by key; a missing value is None. The default prints them."""
        for key, value in res_dict.items():
            if value is not None:
                print(f"{key}: {value}", flush=True)


class FetchHandlerMonitor:
    """Calls a FetchHandler periodically with values from a scope, between `start` and `stop`."""

    def __init__(self, scope: Scope, handler: FetchHandler) -> None:
        self._scope, self._handler = scope, handler
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fetch-handler", daemon=True)

    def start(self) -> None:
        """Start calling the handler."""
        self._thread.start()

    def stop(self) -> None:
        """Stop calling the handler; wait for a call in progress."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._handler.period_secs):
            self._handler.handler(
                {key: self._value(variable) for key, variable in self._handler.var_dict.items()}
            )

    def _value(self, variable: Any) -> Any:
        found = self._scope.find_var(_name_of(variable))
        if found is None or found.value() is None:
            return None
        return np.array(found.get_tensor())


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetching:
    """The values to fetch and print during a pass over a Dataset."""

    names: Sequence[str] = ()
    infos: Sequence[str] = ()
    print_period: int = 100
    """Number of batches between two prints, counted in the first thread, which prints."""
    printer: FetchPrinter = field(default_factory=FetchPrinter)
    """Counts the batches of the first thread across passes."""
    debug: bool = False
    """Whether to also print the first thread's speed and mean operator times to stderr."""
    handler: FetchHandler | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.infos):
            raise AssertionError(
                f"fetch_list has {len(self.names)} variables and fetch_info {len(self.infos)} "
                "texts, expected one text per variable"
            )

    @property
    def fetches(self) -> list[str]:
        """Return all names that a run fetches: first the printed ones, then the handler's."""
        wanted: Iterable[Any] = () if self.handler is None else self.handler.var_dict.values()
        return [*self.names, *filter(None, map(_name_of, wanted))]


def _name_of(variable: Any) -> str:
    """Return the name of a variable in a handler's var_dict, which may be a name or None."""
    return variable if isinstance(variable, str) else getattr(variable, "name", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Options that Fluid does not have: checkpointing during training, resuming and progress
    display.
    """

    checkpoints: CheckpointConfig | None = None
    resume: str | os.PathLike[str] | None = None
    progress: bool | None = None
    """If None, the setting comes from the environment."""

    def __post_init__(self) -> None:
        check_resume(self.resume, self.checkpoints)

    def completed(self, number: int) -> Saving:
        """Return a copy in which environment variables supply the settings that the script omits.

        number: the program's position, from 1, among the programs that this process trains.
        """
        checkpoints, resume, progress = self.checkpoints, self.resume, self.progress
        folder = os.environ.get(_CHECKPOINTS)
        if folder and checkpoints is None:
            every_s = float(os.environ.get(_SECONDS) or _DEFAULT_SECONDS)
            place = f"{folder.rstrip('/')}/program-{number}"
            checkpoints = CheckpointConfig(directory=place, every_s=every_s)
            resume = "auto" if resume is None else resume
        if progress is None:
            progress = os.environ.get(_PROGRESS) == "1"
        return Saving(checkpoints=checkpoints, resume=resume, progress=progress)


class _Trained:
    """The state of a program that is kept between calls to `train_from_dataset`."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Index among the programs that this process trains, from 1."""
        self.progress = TrainingProgress()
        self.has_resumed = False


_trained: WeakKeyDictionary[Program, _Trained] = WeakKeyDictionary()
_numbers = itertools.count(1)


def _trained_so_far(program: Program) -> _Trained:
    if program not in _trained:
        _trained[program] = _Trained(next(_numbers))
    return _trained[program]


class DatasetRun:
    """One pass of a program over a Dataset.

    As in Fluid, threads take batches in turn and share the scope's variables without locks;
    only updates to the same parameter wait for each other. The first error stops all threads and is
    raised.

    saving: None for a pass that does not train.
    """

    def __init__(
        self,
        lower: Lower,
        program: Program,
        scope: Scope,
        fetching: Fetching,
        saving: Saving | None,
    ) -> None:
        self._program = program
        self._trained = _Trained() if saving is None else _trained_so_far(program)
        self._saving = saving = (
            Saving() if saving is None else saving.completed(self._trained.number)
        )
        self._reports = _Reports(fetching)
        self._workload = ProgramWorkload(
            lower,
            program,
            scope,
            fetching.fetches,
            loss=_loss_of(program) if saving.progress else None,
            times=self._reports.times,
        )

    def over(self, dataset: Any, threads: int) -> None:
        """Train on every batch with this many threads, then return."""
        feeds = dataset.feeds() if hasattr(dataset, "feeds") else dataset
        source = BatchSource(feeds, self._workload.as_batch)
        model = self._begin(threads)
        trained, saving = self._trained, self._saving
        training = Training(
            model,
            self._workload,
            LoopConfig(
                prefetch=self._prefetches(model),
                window_batches=_SHOWN.metrics_window_batches if saving.progress else 1,
            ),
            checkpoints=saving.checkpoints,
            resume=None if trained.has_resumed else saving.resume,
            progress=trained.progress,
        )
        self._reports.attach(training.events)
        try:
            if saving.progress:
                _fit_and_show(training, source)
            else:
                training.fit(source, 1)
        finally:
            trained.progress.feed = None  # the feed keeps the program and the data alive
        trained.has_resumed = trained.has_resumed or saving.resume is not None

    def _begin(self, threads: int) -> BoundModel:
        """Return the model that the engine trains, ready for the threads of this pass."""
        role, scope = self._program._distributed, self._workload.scope
        if role is not None:
            served = role.begin_training(self._workload, threads)
            if served is not None:
                self._require_no_deltas()
                return served
        leaves = role is not None and role.begin_pass(self._program, threads)
        checkpoints = self._saving.checkpoints
        saves = checkpoints is not None or self._saving.resume is not None
        if leaves and saves:
            raise ConfigError(
                f"{role} cannot be saved while it trains; save between passes with "
                "fleet.save_check_point"
            )
        model = ScopeModel(self._program, scope)
        if saves and model.reads_servers:
            raise ConfigError(
                f"{role} sends no gradients, so there is nothing to save or resume; pass "
                "checkpoints= and resume= to the program that trains"
            )
        if saves:
            deltas = 0 if checkpoints is None else checkpoints.deltas_between_fulls
            model.keep_tables(track_dirty=deltas > 0)
        model.begin_pass(self._workload, threads, leaves=leaves)
        return model

    def _require_no_deltas(self) -> None:
        checkpoints = self._saving.checkpoints
        if checkpoints is not None and checkpoints.deltas_between_fulls:
            raise ConfigError(
                f"CheckpointConfig.deltas_between_fulls is {checkpoints.deltas_between_fulls}, but "
                "servers do not track changed rows in a program's tables; set it to 0"
            )

    def _prefetches(self, model: BoundModel) -> bool | None:
        """Return True (prefetch) if the model only reads rows on servers.

        None lets the engine decide whether to prefetch.
        """
        return True if isinstance(model, ScopeModel) and model.reads_servers else None


class _Reports:
    """Prints what Fluid prints during a pass; subscribes to the engine's events."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self.times = OpTimes() if fetching.debug else None
        """Measures operator times in the first thread."""
        self._view: PassView | None = None
        self._latest: dict[str, Any] = {}  # the handler's variable -> value

    def attach(self, events: Events) -> None:
        """Subscribe to the events that print something."""
        events.subscribe(PassBegan, self._begin_pass)
        events.subscribe(StepDone, self._end_step)
        handler = self._fetching.handler
        if handler is not None:
            Periodic(handler.period_secs, self._call_handler, name="fetch-handler").attach(events)

    def _begin_pass(self, event: PassBegan) -> None:
        self._view = event.view

    def _end_step(self, event: StepDone) -> None:
        is_first, fetching = event.place.thread == 0, self._fetching
        result: RunResult | None = event.outcome.output
        if fetching.handler is not None and result is not None:
            self._latest.update(zip(fetching.fetches, result.fetched, strict=False))
        if is_first and fetching.printer.is_due(fetching.print_period):
            assert result is not None
            self._print(result)

    def _print(self, result: RunResult) -> None:
        texts = zip(self._fetching.infos, self._fetching.names, strict=True)
        values = zip(result.fetched, result.lods, strict=True)
        for (info, name), (value, lod) in zip(texts, values, strict=False):  # ignore the rest
            print_fetched(info, name, value, lod)
        if self.times is not None and self._view is not None:
            summary = f"{_speed(self._view)}\nmean time of {self.times.summary()}"
            print(summary, file=sys.stderr, flush=True)

    def _call_handler(self) -> None:
        handler = self._fetching.handler
        assert handler is not None
        found: dict[str, Any] = {}
        for key, variable in handler.var_dict.items():
            value = self._latest.get(_name_of(variable))
            found[key] = None if value is None else value.detach().cpu().numpy().copy()
        handler.handler(found)


def _fit_and_show(training: Training[BoundModel], source: BatchSource) -> None:
    """Train for one pass, showing its progress and, at the end, where the time went."""
    display = make_display(quiet=False, log_interval_s=_SHOWN.log_interval_s)
    reporter = ProgressReporter(
        training.distributed,
        Scorer(None, None, _SHOWN),
        display,
        log_interval_s=_SHOWN.log_interval_s,
    )
    reporter.attach(training.events)
    try:
        history = History()
        for result in training.fit(source, 1):
            history.epochs.append(Epoch.of(result, {}))
            history.time_shares += result.time_shares
        display.close()
        if history.epochs:
            is_local = not isinstance(training.distributed.store, RemoteStore)
            history.bottleneck = advise(history.time_shares, history.reading, is_local=is_local)
            for line in summary_lines(history):
                display.note(line)
            display.table(lambda: summary_table(history))
    finally:
        reporter.stop()
        display.close()


def _speed(view: PassView) -> str:
    """Return, as text, the number of batches, the speed and the time spent reading so far."""
    so_far, took = view.total(), max(monotonic() - view.begun, 1e-9)
    return (
        f"{so_far.steps} batches, {so_far.examples / took:.1f} examples/s, mean read time "
        f"{so_far.data_s / max(so_far.steps, 1) * 1e3:.3f} ms, "
        f"{100 * so_far.data_s / (took * len(view.clocks)):.1f} % IO"
    )


def _loss_of(program: Program) -> str | None:
    """Return the variable that the program minimizes, or None if it does not train."""
    losses = [op.input("Loss")[0] for op in program.global_block().ops if op.type == "backward"]
    return losses[-1] if losses else None


def check_no_updates(program: Program) -> None:
    """Raise ConfigError if the program trains."""
    for op in program.global_block().ops:
        if op.role == "optimize":
            raise ConfigError(
                f"infer_from_dataset was given a program that trains ('{op.type}', {op.site}); "
                "pass program.clone(for_test=True), created before minimize"
            )
