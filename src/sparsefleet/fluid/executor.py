"""Runs programs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.fluid.compiler import CompiledProgram, plain_program
from sparsefleet.fluid.core import EOFException
from sparsefleet.fluid.data_parallel import merged_lod, merged_values
from sparsefleet.fluid.dataset_training import (
    DatasetRun,
    FetchHandler,
    Fetching,
    check_no_updates,
)
from sparsefleet.fluid.distributed import ProgramRole
from sparsefleet.fluid.feeding import Fed, feed_of
from sparsefleet.fluid.fetch_printing import FetchPrinter
from sparsefleet.fluid.framework import (
    Operator,
    Program,
    ProgramError,
    Variable,
    default_main_program,
)
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.lowering.lower import lower
from sparsefleet.fluid.lowering.lowered import Lod, Lowered, RunResult
from sparsefleet.fluid.places import CPUPlace, Place, device_of, is_compiled_with_cuda
from sparsefleet.fluid.run_pruning import pruned_for_run, updates_in
from sparsefleet.fluid.scope import Scope, bring_to_device, global_scope
from sparsefleet.fluid.sparse_parameter import empty_table

__all__ = ["Executor", "fetch_names"]


class Executor:
    """Runs a program: operators once, from first to last; what is kept stays in the scope.

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
        # Where there is no GPU, no run asks where its tensors are.
        self.device = device_of(self.place) if is_compiled_with_cuda() else None
        """Where programs run; None: there is nothing but the CPU."""

    def close(self) -> None:
        """Ends the use of this executor, and the part that its programs have in a job."""
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
        """One run; the fetched values in order.

        return_numpy: arrays; else LoDTensors, which values with LoD need.
        return_merged: of a data-parallel program, the values of all places put one behind the
            other; else a list of them for each variable.
        use_prune: run only what the fetches need; what `minimize` returned, in fetch_list, stands
            for its updates, and always has this effect.
        use_program_cache: without effect: what a run needs is kept ready anyway.
        """
        del feed_var_name, fetch_var_name, use_program_cache
        plain = self.checked(program)
        if not plain.global_block().ops and not fetch_list:
            warnings.warn("the program that is run has no operators", stacklevel=2)
        fetches = fetch_names(fetch_list)
        scope = scope or global_scope()
        self._bring(plain, scope)
        if isinstance(program, CompiledProgram) and program._is_data_parallel:
            results = program.compiled(scope, self.place).run(self, feed, fetches)
            return _collected(fetches, results, return_numpy, return_merged)
        if fetch_list and (use_prune or updates_in(fetch_list)):
            plain = self._pruned(plain, fetches, updates_in(fetch_list))
        fed = feed_of(plain, self._feed_or_end(plain, feed, scope))
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
    ) -> None:
        """One pass over a Dataset, by `thread` threads; 0: as many as the dataset has.

        Every print_period batches, counted over passes, the first thread prints
        `info<TAB>name<TAB>values` for each variable of fetch_list.
        """
        scope = scope or global_scope()
        program = self._of_rank(program, scope) or self.checked(program)
        self._bring(program, scope)
        if dataset is None:
            raise RuntimeError("train_from_dataset and infer_from_dataset need a dataset")
        if dataset.thread_num <= 0:
            raise RuntimeError(f"the dataset has {dataset.thread_num} threads: call set_thread")
        names = fetch_names(fetch_list)
        fetching = Fetching(
            names=names,
            infos=names if fetch_info is None else fetch_info,
            print_period=print_period,
            printer=self._printer,
            debug=debug,
            handler=fetch_handler,
        )
        threads = min(thread or dataset.thread_num, max(len(dataset.filelist), 1))
        DatasetRun(self.run_fed, program, scope, fetching, threads).over(dataset)

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
        """As `train_from_dataset`, for a program that does not train."""
        check_no_updates(self.checked(program))
        self.train_from_dataset(
            program,
            dataset,
            scope,
            thread,
            debug,
            fetch_list,
            fetch_info,
            print_period,
            fetch_handler,
        )

    def checked(self, program: Any) -> Program:
        """The program to run; the default one for None."""
        if self._closed:
            raise RuntimeError("this executor was closed: make another")
        program = default_main_program() if program is None else plain_program(program)
        if not isinstance(program, Program):
            raise TypeError(f"an Executor runs a fluid.Program, got {program!r}")
        return program

    def run_fed(
        self, program: Program, fed: Fed, fetches: Sequence[str], scope: Scope
    ) -> RunResult:
        """One run of a checked feed. Thread-safe: threads share what is kept in the scope."""
        role = program._distributed
        if role is None:
            return self._run_lowered(program, fed, fetches, scope)
        self._roles.add(role)
        with role.running(scope):
            return self._run_lowered(program, fed, fetches, scope)

    def _run_lowered(
        self, program: Program, fed: Fed, fetches: Sequence[str], scope: Scope
    ) -> RunResult:
        values, lods = fed
        lowered = self.lowered(program, values, lods, fetches)

        def state_of(name: str) -> Any:
            found = scope.find_var(name)
            value = None if found is None else found.value()
            if value is None and name in lowered.used:
                raise ProgramError.no_value(name, program.site_of_use(name))
            return value

        result = lowered.run(values, lods, state_of)
        for name, value in result.written.items():
            (scope.find_var(name) or scope.var(name)).hold(value)
        return result

    def lowered(
        self,
        program: Program,
        values: Mapping[str, Any],
        lods: Mapping[str, Lod],
        fetches: Sequence[str],
    ) -> Lowered:
        """The program made ready for such a feed; kept as long as the program does not change."""
        known = self._lowered.setdefault(program, {})
        key = (
            program.version,
            program.random_seed,
            tuple(sorted(values)),
            tuple(sorted(lods)),
            tuple(fetches),
        )
        found = known.get(key)
        return self._newly_lowered(program, known, key) if found is None else found

    def _newly_lowered(self, program: Program, known: dict[Any, Lowered], key: Any) -> Lowered:
        _, _, feeds, with_lod, fetches = key
        with self._lowering:  # threads of a pass want the same at once
            if key not in known:
                if any(other[0] != program.version for other in known):
                    known.clear()
                known[key] = lower(program, feeds, fetches, with_lod=with_lod, device=self.device)
                if known[key].has_backward:
                    _core.keep_freed_memory()  # the next step wants as much again
            return known[key]

    def _bring(self, program: Program, scope: Scope) -> None:
        """What the program keeps to where it runs: it may have been loaded, or set by the user."""
        if self.device is not None:
            kept = (found.name for found in program.list_vars() if found.persistable)
            bring_to_device(scope, kept, self.device)

    def make_tables(self, program: Program, scope: Scope | None = None) -> None:
        """Empty tables in the scope for parameters that need one and have no value yet."""
        scope = scope or global_scope()
        for parameter in program.all_parameters():
            held = scope.find_var(parameter.name)
            if parameter.is_table and (held is None or held.value() is None):
                scope.var(parameter.name).hold(empty_table(parameter))

    def _pruned(
        self, program: Program, fetches: Sequence[str], updates: Sequence[Operator]
    ) -> Program:
        known = self._pruned_for.setdefault(program, {})
        key = (program.version, tuple(fetches), tuple(map(id, updates)))
        if key not in known:
            if any(other[0] != program.version for other in known):
                known.clear()
            known[key] = pruned_for_run(program, fetches, updates)
        return known[key]

    def _of_rank(self, program: Any, scope: Scope) -> Program | None:
        """What a compiled program is in a collective job; None for any other."""
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
        """The feed, and a batch of each loader of the program that is not iterated."""
        used: set[str] = set()
        if program.loaders:
            used = {name for op in program.global_block().ops for name in op.input_arg_names}
        for loader in program.loaders:
            names = [variable.name for variable in loader.feed_list]
            if used.intersection(names) and not (feed and set(names) & set(feed)):
                feed = {**(feed or {}), **loader.take_feed()}
        return feed


def fetch_names(fetch_list: Any) -> list[str]:
    """Names of what is to be fetched: variables or names, one or several."""
    if fetch_list is None:
        return []
    items = [fetch_list] if isinstance(fetch_list, (str, Variable)) else fetch_list
    if not isinstance(items, (list, tuple)):
        raise AssertionError(f"fetch_list must be a list of variables or names, got {items!r}")
    names = []
    for item in items:
        if isinstance(item, tuple):  # what minimize returned, see `updates_in`
            continue
        if not isinstance(item, (str, Variable)):
            raise AssertionError(f"fetch_list takes variables and names, got {item!r}")
        names.append(item if isinstance(item, str) else item.name)
    return names


def _collected(
    fetches: Sequence[str], results: Sequence[RunResult], return_numpy: bool, merge: bool
) -> list[Any]:
    """What the replicas of a data-parallel program gave, variable by variable."""
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
    if value.dtype is torch.bfloat16:
        value = value.float()  # NumPy has no such type
    if not return_numpy:
        return LoDTensor(value.clone(), [level.cpu().numpy() for level in lod])
    if lod:
        raise RuntimeError(
            f"'{name}' has sequences (a LoD), which an array cannot hold: fetch it with "
            "return_numpy=False"
        )
    return np.array(value.numpy())  # which as_paddle makes convert to one number, as it once did
