"""Adapts a program to the training engine's workload interface, and batches to its feeds."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparsefleet.engine.workload import Batch, Outcome
from sparsefleet.errors import CheckpointError
from sparsefleet.fluid.framework import Program, ProgramError
from sparsefleet.fluid.framework.call_site import site_prefix
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.framework.variable import Variable, check_feed
from sparsefleet.fluid.lowering.body import detached
from sparsefleet.fluid.lowering.lowered import Lod, Lowered, OpTimes, RunResult
from sparsefleet.fluid.lowering.tables import Ids
from sparsefleet.nn.step_rows import StepRows, active_step

if TYPE_CHECKING:
    from sparsefleet.engine.step import Step
    from sparsefleet.nn.lookup import Lookup

__all__ = ["Fed", "ProgramInputs", "ProgramWorkload", "feed_of"]


Lower = Callable[[Program, Mapping[str, Any], Mapping[str, Lod], Sequence[str]], Lowered]


class ProgramInputs:
    """One feed, and the program lowered (compiled) for it."""

    __slots__ = ("_ids", "lods", "lowered", "values")

    def __init__(self, lowered: Lowered, values: dict[str, torch.Tensor], lods: dict[str, Lod]):
        self.lowered = lowered
        self.values = values
        self.lods = lods
        self._ids: Ids | None = None

    @property
    def num_examples(self) -> int:
        """Return the batch size of the feed, taken from its first variable."""
        return _num_examples((self.values, self.lods))

    @property
    def ids(self) -> Ids:
        """Return the embedding ids that the program can compute from this feed alone. Cached."""
        if self._ids is None:
            self._ids = self.lowered.ids(self.values, self.lods)
        return self._ids


class ProgramWorkload:
    """Runs a program on feeds. Thread-safe: threads share the scope's variables.

    lower: returns the program lowered for a feed; see `Executor.lowered`.
    fetches: names of the variables whose values a run returns.
    loss: the name of the variable to report as the loss of a batch, if any.
    times: measures operator times in the first thread.
    """

    def __init__(
        self,
        lower: Lower,
        program: Program,
        scope: Scope,
        fetches: Sequence[str] = (),
        *,
        loss: str | None = None,
        times: OpTimes | None = None,
    ) -> None:
        self.program = program
        self.scope = scope
        self._fetches = [*fetches, *([] if loss is None else [loss])]
        self._has_loss = loss is not None
        self._times = times
        self._lower = lower
        self._lowered: Lowered | None = None  # for the last feed
        self._drawn: Sequence[str] = ()  # restored states for generators that do not exist yet

    # -- engine.Workload ------------------------------------------------------------------------

    def as_batch(self, raw: Any, number: int) -> Batch:
        """Convert one feed of a Dataset."""
        fed = feed_of(self.program, raw)
        return Batch(number, self.inputs(fed), None, _num_examples(fed))

    def lookups(self, inputs: ProgramInputs) -> list[Lookup]:
        """Return the lookups whose ids depend only on the feed."""
        plan = inputs.lowered.plan
        return [] if plan is None else plan.lookups(inputs.values, inputs.ids)

    def learn(self, rows: StepRows, inputs: ProgramInputs, *, planned: bool) -> None:
        """Do nothing: lookups need not be learned from a step, since the program declares them."""

    def runners(self, threads: int) -> list[ProgramRunner]:
        """Return one runner per thread. The first runner keeps the values it fetches."""
        times = [self._times, *[None] * (threads - 1)]
        return [
            ProgramRunner(self, has_loss=self._has_loss, keeps=index == 0, times=times[index])
            for index in range(threads)
        ]

    # -- for runners and the Executor -----------------------------------------------------------

    def inputs(self, fed: Fed) -> ProgramInputs:
        """Return a checked feed and the program lowered for it."""
        values, lods = fed
        lowered = self._lower(self.program, values, lods, self._fetches)
        if self._drawn:
            _set_states(lowered, self._drawn)
            self._drawn = ()
        self._lowered = lowered
        return ProgramInputs(lowered, values, lods)

    def run(self, inputs: ProgramInputs, rows: StepRows | None = None) -> RunResult:
        """Run the program once. New values of persistent variables are stored in the scope.

        rows: the source of the rows to look up; None means the tables in the scope.
        """
        result = inputs.lowered.run(
            inputs.values,
            inputs.lods,
            lambda name: self._state(name, inputs.lowered),
            rows,
            inputs.ids,
        )
        for name, value in result.written.items():
            (self.scope.find_var(name) or self.scope.var(name)).hold(value)
        return result

    def running(self, step: Step | None = None) -> AbstractContextManager[None]:
        """Let operators that run in the `with` block look up the program's role and the current
        step.
        """
        role = self.program._distributed
        return nullcontext() if role is None else role.running(self.scope, step)

    # -- for checkpoints ------------------------------------------------------------------------

    def random_state(self) -> list[str]:
        """Return the random generator state of each operator that has a seed, as text."""
        if self._lowered is None:
            return list(self._drawn)
        return [_text(generator.get_state()) for generator in self._lowered.generators]

    def set_random_state(self, states: Sequence[str]) -> None:
        """Restore a state returned by `random_state` when the first feed arrives."""
        self._drawn = states

    def _state(self, name: str, lowered: Lowered) -> Any:
        found = self.scope.find_var(name)
        value = None if found is None else found.value()
        if value is None and name in lowered.used:
            raise ProgramError.no_value(name, self.program.site_of_use(name))
        return value


class ProgramRunner:
    """Runs the batches of one thread.

    has_loss: whether the last fetched value is the loss.
    keeps: whether outcomes include the fetched values.
    times: measures operator times.
    """

    module = None

    def __init__(
        self, workload: ProgramWorkload, *, has_loss: bool, keeps: bool, times: OpTimes | None
    ) -> None:
        self._workload = workload
        self._has_loss = has_loss
        self._keeps = keeps
        self._timed = nullcontext() if times is None else times

    def train(self, batch: Batch, step: Step) -> Outcome:
        """Run the whole program; its `send` operator passes the gradients to the step."""
        with self._workload.running(step), self._timed:
            result = self._workload.run(batch.inputs, step.rows)
        return self._outcome(batch, result)

    def infer(self, batch: Batch) -> Outcome:
        """Run a program that does not train."""
        with self._workload.running(), self._timed:
            result = self._workload.run(batch.inputs, active_step())
        return self._outcome(batch, result)

    def _outcome(self, batch: Batch, result: RunResult) -> Outcome:
        loss = float(result.fetched[-1].detach().mean()) if self._has_loss else math.nan
        if not self._keeps:
            return Outcome(batch.size, loss)
        kept = RunResult([detached(value) for value in result.fetched], result.lods, {})
        return Outcome(batch.size, loss, kept)


def _set_states(lowered: Lowered, states: Sequence[str]) -> None:
    if len(states) != len(lowered.generators):
        raise CheckpointError(
            f"the checkpoint has the states of {len(states)} random operators, but the program has "
            f"{len(lowered.generators)}; resume with the program that was saved"
        )
    for generator, state in zip(lowered.generators, states, strict=True):
        data = bytearray(base64.b64decode(state, validate=True))
        generator.set_state(torch.frombuffer(data, dtype=torch.uint8))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _num_examples(fed: Fed) -> int:
    """Return the batch size of a Dataset's feed, which all its slots share."""
    values, lods = fed
    for name, value in values.items():
        return len(lods[name][0]) - 1 if name in lods else value.shape[0] if value.ndim else 1
    return 0


Fed = tuple[dict[str, torch.Tensor], dict[str, Lod]]
"""Values by name, and the LoDs of values that hold sequences."""


def feed_of(
    program: Program,
    feed: Mapping[str, Any] | list[Mapping[str, Any]] | None,
    num_places: int = 1,
) -> Fed:
    """Check a feed and convert it to tensors.

    Its values may be arrays, LoDTensors, tensors, numbers, or a Dataset's (values, offsets).
    """
    if isinstance(feed, (list, tuple)) and len(feed) == 1:
        feed = feed[0]
    if feed is None:
        feed = {}
    if not isinstance(feed, Mapping):
        raise TypeError(f"feed must be a dict of name -> array, got {type(feed).__name__}")
    variables = program.global_block().vars
    values: dict[str, torch.Tensor] = {}
    lods: dict[str, Lod] = {}
    for name, given in feed.items():
        variable = variables.get(name)
        if variable is None:
            warnings.warn(
                f"'{name}' is fed, but the program has no variable with that name", stacklevel=4
            )
            continue
        values[name], lod = _tensor_of(variable, given, num_places)
        if lod:
            lods[name] = lod
    return values, lods


def _tensor_of(variable: Variable, given: Any, num_places: int) -> tuple[torch.Tensor, Lod]:
    lod: Lod = ()
    if isinstance(given, LoDTensor):
        lod = tuple(torch.from_numpy(level) for level in given.offsets())
        tensor = given.tensor
    elif isinstance(given, tuple) and len(given) == 2:
        tensor, lod = torch.from_numpy(given[0]), (torch.from_numpy(given[1]),)
    elif isinstance(given, torch.Tensor):
        tensor = given.detach()
    elif isinstance(given, list):
        raise RuntimeError(
            f"{site_prefix()}fed to '{variable.name}': got a list; convert it to an array or, "
            "for sequences of different lengths, to a LoDTensor with "
            "fluid.create_lod_tensor or fluid.DataFeeder"
        )
    else:
        array = np.asarray(given)
        if array.dtype.kind in "OSU":
            raise TypeError(
                f"{site_prefix()}fed to '{variable.name}': got {type(given).__name__} of "
                f"{array.dtype}, expected {variable.dtype} numbers"
            )
        if array.ndim == 0:
            array = array.reshape(1).astype(variable.dtype)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    shape = tuple(tensor.shape)
    if lod and variable.shape[:1] not in ((-1,), shape[:1]):  # may be the number of sequences
        shape = (len(lod[0]) - 1, *shape[1:])
    check_feed(variable, shape, tensor.dtype, num_places)
    return tensor, lod
