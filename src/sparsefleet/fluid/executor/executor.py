"""The Executor, which runs programs, and ParallelExecutor, Fluid's older form of it."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.worker_metrics import WORKER
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.distributed import ProgramRole
from sparsefleet.fluid.executor.compiler import CompiledProgram, plain_program
from sparsefleet.fluid.executor.data_parallel import merged_lod, merged_values
from sparsefleet.fluid.executor.dataset_training import (
    DatasetRun,
    FetchHandler,
    Fetching,
    Saving,
    check_no_updates,
)
from sparsefleet.fluid.executor.fetch_printing import FetchPrinter
from sparsefleet.fluid.executor.program_workload import Fed, ProgramInputs, ProgramWorkload, feed_of
from sparsefleet.fluid.fleet.settings import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.framework import (
    Operator,
    Program,
    default_main_program,
)
from sparsefleet.fluid.framework.core import EOFException
from sparsefleet.fluid.framework.flags import checks_nan_inf
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import (
    CPUPlace,
    CUDAPlace,
    Place,
    cpu_places,
    cuda_places,
    device_of,
    is_compiled_with_cuda,
)
from sparsefleet.fluid.framework.scope import (
    Scope,
    bring_to_device,
    global_scope,
    scope_guard,
)
from sparsefleet.fluid.framework.sparse_parameter import empty_table
from sparsefleet.fluid.lowering.lower import lower
from sparsefleet.fluid.lowering.lowered import Lod, Lowered, RunResult
from sparsefleet.fluid.lowering.pruning import pruned_for_run, split_fetches

__all__ = [
    "Executor",
    "ParallelExecutor",
    "PeriodicFetch",
    "as_numpy",
    "fetch_names",
    "global_scope",
    "scope_guard",
]


def as_numpy(tensor: Any) -> Any:
    """Return the values of a LoDTensor as an array; for a list, convert each element.

    Raises RuntimeError for a tensor with a LoD, which an array cannot hold.
    """
    if isinstance(tensor, list):
        return [as_numpy(item) for item in tensor]
    if isinstance(tensor, LoDTensor) and tensor.lod():
        raise RuntimeError(
            f"a LoDTensor with the LoD {tensor.lod()} cannot be converted to an array; fetch it "
            "with return_numpy=False"
        )
    return np.array(tensor)


def _fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value of a variable in a scope: an array, or the LoDTensor to read and set.

    scope: None means the global scope.

    Raises ValueError if the scope has no such variable.
    """
    found = (global_scope() if scope is None else scope).find_var(name)
    if found is None:
        raise ValueError(
            f"variable {name!r} is not in the scope; only persistable variables stay there after a "
            "run: set its persistable attribute, and run the startup program first"
        )
    tensor = found.get_tensor()
    return as_numpy(tensor) if return_numpy else tensor


class Executor:
    """Runs the operators of a program in order; persistent variables stay in the scope.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     double = fluid.data("x", [None, 2]) * 2.0
    ...     exe = Executor(fluid.CPUPlace())
    ...     exe.run(feed={"x": np.ones((1, 2), "float32")}, fetch_list=[double])
    [array([[2., 2.]], dtype=float32)]
    """

    def __init__(self, place: Place | None = None) -> None:
        if place is not None and not isinstance(place, Place):
            raise TypeError(f"Executor takes a place such as fluid.CPUPlace(), got {place!r}")
        self.place = place or CPUPlace()
        self._lowered: WeakKeyDictionary[Program, dict[Any, Lowered]] = WeakKeyDictionary()
        self._pruned_for: WeakKeyDictionary[Program, dict[Any, Program]] = WeakKeyDictionary()
        self._roles: WeakSet[ProgramRole] = WeakSet()
        self._printer = FetchPrinter()
        self._lowering = threading.Lock()
        self._closed = False
        # Without a GPU, runs do not need to check which device their tensors are on.
        self.device = device_of(self.place) if is_compiled_with_cuda() else None
        """The device on which programs run, or None if only the CPU is available."""

    def close(self) -> None:
        """Close this executor and leave the jobs that its programs take part in."""
        self._closed = True
        for role in self._roles:
            role.close()

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run the program once and return the fetched values in order.

        return_numpy: return arrays instead of LoDTensors; values with LoD require LoDTensors.
        return_merged: for a data-parallel program, concatenate the values of all places; otherwise
            return a list per variable.
        use_prune: run only the updates and the operators that the fetches need. Update operators in
            fetch_list, as returned by `minimize`, have the same effect, and then only those updates
            run.
        use_program_cache: has no effect, since lowered programs are always cached.
        """
        del feed_var_name, fetch_var_name, use_program_cache
        if isinstance(program, CompiledProgram) and program._predictor is not None:
            return program._predictor.run(feed)
        plain = self.checked(program)
        if not plain.global_block().ops and not fetch_list:
            warnings.warn("the program to run has no operators", stacklevel=2)
        if isinstance(feed, Mapping):
            feed = dict(feed.items())
        variables, updates = split_fetches(fetch_list)
        fetches = fetch_names(variables)
        scope = scope or global_scope()
        if use_prune or updates:
            program = self._pruned(plain if program is None else program, feed, fetches, updates)
            plain = plain_program(program)
            feed = _fed_within(plain, feed)
        self._prepare(plain, scope)
        if isinstance(program, CompiledProgram) and program._is_data_parallel:
            results = program.compiled(scope, self.place).run(self, feed, fetches)
            return _collected(fetches, results, return_numpy, return_merged)
        fed = feed_of(plain, self._feed_or_end(plain, feed, scope))
        variables_here = plain.global_block().vars
        for name, value in fed[0].items():
            if variables_here[name].persistable:
                scope.var(name).hold(value)
        if plain._distributed is not None:
            plain._distributed.begin_pass(plain, 1)
        result = self.run_fed(plain, fed, fetches, scope)
        return [
            _fetched(name, value, lod, return_numpy)
            for name, value, lod in zip(fetches, result.fetched, result.lods, strict=True)
        ]

    def train_from_dataset(
        self,
        program: Program | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
        *,
        checkpoints: CheckpointConfig | None = None,
        resume: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """Train for one pass over a Dataset with `thread` threads; 0 uses the dataset's number.

        Every print_period batches, counted across passes, the first thread prints
        `info<TAB>name<TAB>values` for each variable in fetch_list.

        These options go beyond Fluid:
        checkpoints: save the program and its position in the data while it trains, and at the end.
        resume: "auto" resumes from the newest checkpoint in `checkpoints`; a path resumes from the
            checkpoint at that path. Calls that finished before the checkpoint was saved return
            immediately.
        progress: show speed and loss and, at the end, where the time went.
        """
        _check_dataset(dataset)
        fetching = self._fetching(debug, fetch_list, fetch_info, print_period, fetch_handler)
        saving = Saving(checkpoints=checkpoints, resume=resume, progress=progress)
        self._run_over(dataset, program, scope, thread, fetching, saving)

    def infer_from_dataset(
        self,
        program: Program | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> None:
        """Run a non-training program over a Dataset; see `train_from_dataset`."""
        check_no_updates(self.checked(program))
        _check_dataset(dataset)
        fetching = self._fetching(debug, fetch_list, fetch_info, print_period, fetch_handler)
        self._run_over(dataset, program, scope, thread, fetching, None)

    def checked(self, program: Any) -> Program:
        """Return the program to run; None means the default program."""
        if self._closed:
            raise RuntimeError("this executor is closed; create a new one")
        program = default_main_program() if program is None else plain_program(program)
        if not isinstance(program, Program):
            raise TypeError(f"an Executor runs a fluid.Program, got {program!r}")
        return program

    def run_fed(
        self, program: Program, fed: Fed, fetches: Sequence[str], scope: Scope
    ) -> RunResult:
        """Run once with a checked feed. Thread-safe: threads share the scope's variables."""
        workload = ProgramWorkload(self.lowered, program, scope, fetches)
        inputs = workload.inputs(fed)
        role = program._distributed
        if role is None:
            return _run_alone(workload, inputs)
        self._roles.add(role)
        return role.run(workload, inputs)

    def lowered(
        self,
        program: Program,
        values: Mapping[str, Any],
        lods: Mapping[str, Lod],
        fetches: Sequence[str],
    ) -> Lowered:
        """Return the program lowered for this kind of feed. Cached until the program changes."""
        known = self._lowered.setdefault(program, {})
        key = (
            program.version,
            program.random_seed,
            checks_nan_inf(),
            tuple(sorted(values)),
            tuple(sorted(lods)),
            tuple(fetches),
        )
        found = known.get(key)
        return self._newly_lowered(program, known, key) if found is None else found

    def _newly_lowered(self, program: Program, known: dict[Any, Lowered], key: Any) -> Lowered:
        *_, feeds, with_lod, fetches = key
        with self._lowering:  # threads of a pass request the same program at the same time
            if key not in known:
                if any(other[0] != program.version for other in known):
                    known.clear()
                known[key] = lower(program, feeds, fetches, with_lod=with_lod, device=self.device)
                if known[key].has_backward:
                    _core.keep_freed_memory()  # the next step needs the same amount again
            return known[key]

    def _prepare(self, program: Program, scope: Scope) -> None:
        """Create persistent variables in the scope and move them to the executor's device."""
        if scope.prepared.get(program) != program.version:
            scope.prepared[program] = program.version
            for variable in program.list_vars():
                if variable.persistable and scope.find_var(variable.name) is None:
                    scope.var(variable.name)
        if self.device is not None:  # the value may have been loaded or set by the user
            kept = (found.name for found in program.list_vars() if found.persistable)
            bring_to_device(scope, kept, self.device)

    def make_tables(self, program: Program, scope: Scope | None = None) -> None:
        """Create empty tables in the scope for parameters that need one and have no value yet."""
        scope = scope or global_scope()
        for parameter in program.all_parameters():
            held = scope.find_var(parameter.name)
            if parameter.is_table and (held is None or held.value() is None):
                scope.var(parameter.name).hold(empty_table(parameter))

    def _pruned(
        self, program: Any, feed: Any, fetches: Sequence[str], updates: Sequence[Operator]
    ) -> Any:
        """Return the part of a program that a run needs; cached per set of feeds and fetches."""
        plain = plain_program(program)
        first = feed[0] if isinstance(feed, (list, tuple)) and feed else feed
        feeds = tuple(sorted(first or ()))
        known = self._pruned_for.setdefault(plain, {})
        key = (plain.version, id(program), feeds, tuple(fetches), tuple(map(id, updates)))
        if key not in known:
            for other in [other for other in known if other[0] != plain.version]:
                del known[other]
            known[key] = self._prune_program(program, feed, fetches, list(updates))
        return known[key]

    def _prune_program(
        self, program: Any, feed: Any, fetch_list: Sequence[str], optimize_ops: list[Operator]
    ) -> Any:
        first = feed[0] if isinstance(feed, (list, tuple)) and feed else feed
        pruned = pruned_for_run(plain_program(program), first or (), fetch_list, optimize_ops)
        return program.of_program(pruned) if isinstance(program, CompiledProgram) else pruned

    def _fetching(
        self,
        debug: bool,
        fetch_list: Any,
        fetch_info: Sequence[str] | None,
        print_period: int,
        handler: FetchHandler | None,
    ) -> Fetching:
        names = fetch_names(fetch_list)
        return Fetching(
            names=names,
            infos=names if fetch_info is None else fetch_info,
            print_period=print_period,
            printer=self._printer,
            debug=debug,
            handler=handler,
        )

    def _run_over(
        self,
        dataset: Any,
        program: Program | None,
        scope: Scope | None,
        thread: int,
        fetching: Fetching,
        saving: Saving | None,
    ) -> None:
        """Run a program over a Dataset; `saving` is None for a pass that does not train."""
        scope = scope or global_scope()
        plain = self._of_rank(program, scope) or self.checked(program)
        self._prepare(plain, scope)
        if plain._distributed is not None:
            self._roles.add(plain._distributed)
        threads = min(thread or dataset.thread_num, max(len(dataset.filelist), 1))
        DatasetRun(self.lowered, plain, scope, fetching, saving).over(dataset, threads)

    def _of_rank(self, program: Any, scope: Scope) -> Program | None:
        """Return this rank's program for a compiled program, or None outside a collective job."""
        if not (isinstance(program, CompiledProgram) and program._is_data_parallel):
            return None
        if program._build_strategy.num_trainers == 1:
            return None
        return program.compiled(scope, self.place).program_of_rank()

    def _feed_or_end(self, program: Program, feed: Any, scope: Scope) -> Any:
        try:
            return self.loaded_feed(program, feed)
        except EOFException:
            if program._distributed is not None:
                program._distributed.end_data(scope)
            raise

    def loaded_feed(self, program: Program, feed: Any) -> Any:
        """Return the feed together with a batch from each of the program's started loaders."""
        for loader in program.loaders:
            names = [variable.name for variable in loader.feed_list]
            is_here = any(program.global_block().has_var(name) for name in names)
            if is_here and not (feed and set(names) & set(feed)):
                feed = {**(feed or {}), **loader.take_feed()}
        return feed


def _run_alone(workload: ProgramWorkload, inputs: ProgramInputs) -> RunResult:
    """Run a program that keeps its values in the scope. If it trains, the run is one step."""
    begun = perf_counter()
    result = workload.run(inputs)
    if inputs.lowered.has_backward:
        WORKER.serve(None)
        WORKER.own_clock().count(inputs.num_examples, begun, begun, perf_counter())
    return result


def _check_dataset(dataset: Any) -> None:
    if dataset is None:
        raise RuntimeError("dataset is need and should be initialized")
    if dataset.thread_num <= 0:
        raise RuntimeError(
            f"the dataset has {dataset.thread_num} threads, expected at least 1; call set_thread"
        )


def fetch_names(fetch_list: Any) -> list[str]:
    """Return the names of the variables to fetch, given one or more variables or names."""
    variables, _ = split_fetches(fetch_list)
    return [item if isinstance(item, str) else item.name for item in variables]


def _fed_within(program: Program, feed: Any) -> Any:
    """Return the feed without variables that were pruned from the program."""
    if isinstance(feed, (list, tuple)):
        return [_fed_within(program, one) for one in feed]
    known = program.global_block().vars
    return None if feed is None else {n: value for n, value in feed.items() if n in known}


def _collected(
    fetches: Sequence[str], results: Sequence[RunResult], return_numpy: bool, merge: bool
) -> list[Any]:
    """Return a data-parallel program's results for each variable, from all replicas."""
    found = []
    for index, name in enumerate(fetches):
        values = [result.fetched[index] for result in results]
        lods = [result.lods[index] for result in results]
        if merge:
            merged = values[0] if len(values) == 1 else merged_values(values)
            found.append(_fetched(name, merged, merged_lod(lods), return_numpy))
        else:
            parts = zip(values, lods, strict=True)
            found.append([_fetched(name, value, lod, return_numpy) for value, lod in parts])
    return found


def _fetched(name: str, value: Any, lod: Lod, return_numpy: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, list):  # an array
        return [_fetched(name, item, lod, return_numpy) for item, lod in value]
    if not isinstance(value, torch.Tensor):  # a parameter in a table
        return value.numpy() if return_numpy else value
    value = value.detach().cpu()
    if value._is_zerotensor():  # a gradient that autograd did not allocate
        value = value.clone()
    if value.dtype is torch.bfloat16:
        value = value.float()  # NumPy has no bfloat16
    if not return_numpy:
        return LoDTensor(value.clone(), [level.cpu().numpy() for level in lod])
    if lod:
        raise RuntimeError(
            f"'{name}' has sequences (a LoD), which an array cannot hold; fetch it with "
            "return_numpy=False"
        )
    return np.array(value.numpy())


class PeriodicFetch:
    """Fetches values every `fetch_frequency` runs; other runs return the last fetched values.

    The first run always fetches. A fetch waits for the run to finish and copies values, which is
    wasteful for a metric that is only printed occasionally.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     double = fluid.data("x", [1]) * 2.0
    ...     runs = PeriodicFetch(fluid.Executor(), [double], fetch_frequency=2)
    ...     [float(runs.run(feed={"x": np.float32([n])})[0][0]) for n in range(4)]
    [0.0, 0.0, 4.0, 4.0]
    """

    def __init__(self, executor: Executor, fetch_list: Any, fetch_frequency: int = 1) -> None:
        if not isinstance(fetch_frequency, int) or fetch_frequency < 1:
            raise ConfigError(
                f"PeriodicFetch: fetch_frequency must be an int >= 1, got {fetch_frequency!r}"
            )
        self._executor = executor
        self._fetch_list = fetch_list
        self._frequency = fetch_frequency
        self._runs = 0
        self._last: list[Any] = []

    @property
    def is_fresh(self) -> bool:
        """Return whether the last run fetched."""
        return self._runs % self._frequency == 1 or self._frequency == 1

    def run(self, program: Any = None, feed: Any = None, **settings: Any) -> list[Any]:
        """Call `Executor.run` with the settings; return the most recently fetched values."""
        is_due = self._runs % self._frequency == 0
        found = self._executor.run(program, feed, self._fetch_list if is_due else [], **settings)
        self._runs += 1
        if is_due:
            self._last = found
        return self._last


class ParallelExecutor:
    """A data-parallel CompiledProgram and the Executor that runs it.

    use_cuda: run replicas on the GPUs that torch sees; otherwise, CPU_NUM replicas on the CPU.
    loss_name: needed if the program trains.
    main_program: None uses the default main program.
    share_vars_from: a ParallelExecutor that has run, whose variables are shared.
    num_trainers, trainer_id: must be 1 and 0; use fleet to train in several processes.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     double = fluid.data("x", [None, 1]) * 2.0
    ...     pe = ParallelExecutor(use_cuda=False)
    ...     pe.run([double.name], feed={"x": np.ones((2, 1), "float32")})
    [array([[2.],
           [2.]], dtype=float32)]
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        *,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise AssertionError(
                f"share_vars_from must be a ParallelExecutor, got {share_vars_from!r}"
            )
        build = BuildStrategy() if build_strategy is None else copy.deepcopy(build_strategy)
        build.num_trainers, build.trainer_id = num_trainers, trainer_id
        shared = None if share_vars_from is None else share_vars_from.compiled
        self._places: list[Place] = [*(cuda_places() if use_cuda else cpu_places())]
        self._scope = global_scope() if scope is None else scope
        self.compiled: CompiledProgram = CompiledProgram(
            default_main_program() if main_program is None else main_program
        ).with_data_parallel(
            loss_name=loss_name,
            build_strategy=build,
            exec_strategy=exec_strategy,
            share_vars_from=shared,
            places=self._places,
        )
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())

    def run(
        self, fetch_list: Any, feed: Any = None, feed_dict: Any = None, return_numpy: bool = True
    ) -> list[Any]:
        """Run once; return the values of all replicas, concatenated.

        feed: a dict that is split among the replicas, or a list with one dict per replica.
        feed_dict: the older name of feed.
        """
        return self._executor.run(
            self.compiled,
            feed=feed_dict if feed is None else feed,
            fetch_list=fetch_list,
            scope=self._scope,
            return_numpy=return_numpy,
        )

    @property
    def device_count(self) -> int:
        """Return the number of replicas."""
        return len(self._places)

    def drop_local_exe_scopes(self) -> None:
        """Do nothing, since temporary variables are freed at the end of each run."""
