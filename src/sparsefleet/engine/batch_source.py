"""The source of batches: one resumable iterator per pass, shared by all training threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from sparsefleet.engine.applied_batches import AppliedBatches
from sparsefleet.engine.clock import ReadingWatch
from sparsefleet.engine.random_state import random_state, set_random_state
from sparsefleet.engine.record_passes import (
    MarkedData,
    RecordPasses,
    record_files,
    records_of,
)
from sparsefleet.engine.thread_team import add_note
from sparsefleet.engine.workload import Batch
from sparsefleet.errors import CheckpointError, ConfigError
from sparsefleet.modes.mode_setting import BatchOrigin

__all__ = [
    "BatchFeed",
    "BatchSource",
    "Data",
    "DataPosition",
    "PassStart",
    "StatefulData",
    "skip_batches",
]
_log = logging.getLogger("sparsefleet.engine")
Data = Iterable[Any] | Callable[[], Iterable[Any]]
"""Raw batches: an iterable that is iterated once per pass, or a function that returns such an
iterable.
"""
AsBatch = Callable[[Any, int], Batch]
"""Converts a raw item and its position in the pass to a batch; see `Workload.as_batch`."""


@runtime_checkable
class StatefulData(Protocol):
    """Data that can report and restore its position, such as `sparsefleet.data.Reader`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the current pass, as lists, dicts, strings and numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume at the position saved in `state`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPosition:
    """How much of one worker's data has been trained on in the current pass.

    >>> DataPosition.from_json(DataPosition(batches=3).to_json()).batches
    3
    """

    batches: int = 0
    """Batches trained on since the pass started or, with `state`, since it was last resumed."""

    state: Mapping[str, Any] | None = None
    """The data's `state_dict()`, if it has one."""

    random_at_start: Mapping[str, Any] | None = None
    """If there is no `state`, the random generators' state at the start of the pass, so that
    shuffled data can be read in the same order again.
    """

    def to_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "state": self.state,
            "random_at_start": self.random_at_start,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> DataPosition:
        """Parse the result of `to_json`."""
        try:
            return DataPosition(
                batches=int(found["batches"]),
                state=found["state"],
                random_at_start=found["random_at_start"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"expected a position in training data, got {found!r:.200}"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class PassStart:
    """Where a pass starts when it resumes an earlier run."""

    positions: Sequence[DataPosition] = field(default_factory=list)
    """This worker's position or, if the earlier run had a different number of workers, the
    positions of all its workers.
    """

    is_through: bool = False
    """Whether no data is left to train on in this pass."""

    together: PassStart | None = None
    """Positions of all workers, for shared data; any worker may take the remaining data."""

    applied: AppliedBatches | None = None
    """Batches after the position that servers have already applied, if a previous process of this
    worker trained on them.
    """

    def for_data(self, data: object) -> PassStart:
        """Return the start that applies to `data`.

        This is `together` if all workers share the data (see `Reader.is_shared`), and this start
        otherwise.
        """
        is_shared = getattr(data, "is_shared", False) is True
        return self.together if is_shared and self.together is not None else self

    def own(self) -> DataPosition | None:
        """Return this worker's position, or None if the earlier run divided data differently."""
        return self.positions[0] if len(self.positions) == 1 else None

    def load_into(self, data: object) -> bool:
        """Make the next pass over `data` resume from this start; return False if it cannot.

        Data that was divided among a different number of workers needs `load_state_dicts`, which
        takes the states of all workers; without it, the pass starts over with a warning.
        """
        begun = [each for each in self.positions if each.batches or each.state is not None]
        states = [each.state for each in begun if each.state is not None]
        if not isinstance(data, StatefulData) or not states or len(states) < len(begun):
            return False
        if len(states) == 1:
            data.load_state_dict(states[0])
            return True
        load_all = getattr(data, "load_state_dicts", None)
        if not callable(load_all):
            return False
        load_all(states)
        return True

    def warn_of_restart(self) -> None:
        """Log that the pass starts over and repeats data that was already seen."""
        _log.warning(
            "the checkpoint was written by %d workers, and this data cannot be resumed with a "
            "different number, so the interrupted epoch starts over (data.Reader can resume)",
            len(self.positions),
        )


def skip_batches(batches: Iterator[Any], count: int) -> None:
    """Skip `count` batches that an earlier process has trained on."""
    if count:
        _log.info("skipping %d batches that were trained on earlier", count)
    for number in range(count):
        if next(batches, batches) is batches:
            raise ConfigError(
                f"the data has {number} batches, but the checkpoint was made after {count}, so "
                "this is different data. Use the original data, or load only the model with "
                "Trainer.load(directory)"
            )


_NEW = BatchOrigin(0, 0)


class BatchFeed:
    """The batches of one pass. Thread-safe: each batch goes to one thread.

    >>> feed = BatchFeed(iter("ab"), lambda raw, number: Batch(number, raw, None, 1))
    >>> feed.take().number, feed.take().number, feed.take()
    (1, 2, None)
    """

    def __init__(
        self,
        batches: Iterator[Any],
        as_batch: AsBatch,
        *,
        data: object = None,
        before: DataPosition | None = None,
        close: Callable[[], None] | None = None,
        applied: AppliedBatches | None = None,
        files: Mapping[str, int] | None = None,
    ) -> None:
        """Create the feed of one pass.

        data: the source of the batches; it may be able to report its position.
        before: where the pass started.
        close: stops the reader behind `batches`, if it was started for this pass.
        applied: batches to skip because servers have applied them.
        files: maps each file whose records identify batches to its number; None uses the files of
            `data`, if it has any.
        """
        self._batches = batches
        self._close = close
        self._as_batch = as_batch
        self.data = data
        """The data that the batches come from, if known."""
        self._before = before or DataPosition()
        self.applied = applied
        """The data of this pass that servers had applied when this process started."""
        self._files = record_files(data) if files is None else files
        self._epoch = None if applied is None else applied.epoch
        self._origins: dict[int, BatchOrigin] = {}
        self._lock = threading.Lock()
        self._taken = 0
        self._ended = False

    @property
    def taken(self) -> int:
        """Return the number of batches handed out so far."""
        return self._taken

    def take(self) -> Batch | None:
        """Return the next batch, or None at the end of the data or after `stop`."""
        with self._lock:
            if self._ended:
                return None
            try:
                raw = self._next()
            except StopIteration:
                self._ended = True
                return None
            except BaseException:
                self._ended = True  # an iterator that raised is exhausted
                raise
            number = self._taken
        return self._as_batch(raw, number)

    def _next(self) -> Any:
        if self._files is not None and self._epoch is not None:
            return self._next_records(self._files, self._epoch)
        while True:
            raw = next(self._batches)
            self._taken += 1
            if self.applied is None or not self.applied.is_done(self._taken):
                return raw

    def _next_records(self, files: Mapping[str, int], epoch: int) -> Any:
        """Return the next batch, for data whose batches are identified by their records."""
        taken = self._batches.take()  # type: ignore[attr-defined]
        if taken is None:
            raise StopIteration
        self._taken += 1
        known: BatchOrigin = getattr(self._batches, "origin", _NEW)
        records = records_of(files, taken.marks)
        self._origins[self._taken] = known._replace(
            epoch=epoch,
            number=self._taken,
            records=records,
            base=0 if self.applied is None else self.applied.base,
        )
        return taken.batch

    def keep_account(self, epoch: int) -> None:
        """From now on, report each batch of pass `epoch` to the servers.

        Call it before the first `take`.
        """
        self._epoch = epoch
        keep = getattr(self.data, "keep_account", None)
        if callable(keep):
            keep()

    def origin(self, number: int) -> BatchOrigin | None:
        """Return the `BatchOrigin` to send to the servers with the push of batch `number`.

        Each origin is returned only once. Return None if servers do not track batches.
        """
        if self._epoch is None:
            return None
        if self._files is not None:
            return self._origins.pop(number)
        known = self.applied
        return BatchOrigin(self._epoch, number) if known is None else known.origin(number)

    @property
    def is_through(self) -> bool:
        """Return whether all batches have been handed out."""
        return self._ended

    def position(self) -> DataPosition:
        """Return the position reached in this pass; call it while no thread takes batches."""
        before = self._before
        state = before.state
        if isinstance(self.data, StatefulData):
            # At the end of a pass, state_dict() describes the next one.
            at_end = getattr(self.data, "finished_state_dict", self.data.state_dict)
            state = at_end() if self._ended else self.data.state_dict()
        return replace(before, batches=before.batches + self._taken, state=state)

    def stop(self) -> None:
        """Stop the pass for all threads, without waiting for a batch that is being read."""
        self._ended = True

    def close(self) -> None:
        """Stop the pass, and shut down the reader behind it: its threads, processes and files."""
        self.stop()
        self._batches = iter(())
        close, self._close = self._close, None
        if close is not None:
            try:
                close()
            except Exception as error:  # any data; the error being raised is more informative
                _log.warning("the data could not be closed: %r", error)


class BatchSource:
    """Training data that is read `passes` times. Raises ConfigError if it cannot be reread.

    argument: the argument that the data was passed as, for errors.
    """

    def __init__(
        self, data: Data, as_batch: AsBatch, *, passes: int = 1, argument: str = "data"
    ) -> None:
        self._as_batch = as_batch
        self._argument = argument
        self._data = data
        self.opened: Data = data
        """The data of the last pass: the data itself, or what its function returned."""
        self._open: Callable[[], Iterable[Any]]
        if isinstance(data, (Tensor, np.ndarray, str, bytes, Mapping)):
            raise ConfigError(
                f"{argument} must be an iterable of batches (inputs, labels) or a function that "
                f"returns an iterable, got a {type(data).__name__}"
            )
        if isinstance(data, Iterable):
            if passes > 1 and isinstance(data, Iterator):
                needed = f"there are {passes} epochs" if argument == "data" else "it is read again"
                raise ConfigError(
                    f"{argument} is a {type(data).__name__}, which can be read only once, but "
                    f"{needed}: pass a list, a DataLoader, or a function that "
                    "creates the iterator"
                )
            self._open = data.__iter__
        elif callable(data):
            self._open = data
        else:
            raise ConfigError(
                f"{argument} must be an iterable of batches or a function that returns an "
                f"iterable, got a {type(data).__name__}"
            )
        self.reading = ReadingWatch(data)
        """The reading statistics that the data reports."""
        self.num_batches = _length_of(data)
        """Number of batches per pass, if known."""

    def require_batches(self) -> None:
        """Raise an error if it is known now that the data has no batches, or a bad first one.

        This covers data with a length and readers of files, but not functions.
        """
        if self.num_batches == 0:
            raise ConfigError(f"{self._argument} has no batches, expected at least one")
        check = getattr(self._data, "require_records", None)
        if callable(check):
            try:
                check()
            except Exception as error:  # any error of reading
                add_note(error, f"raised in {self._argument}, which is checked before training")
                raise

    @property
    def record_files(self) -> Mapping[str, int] | None:
        """Return the numbers of the files whose records identify batches.

        Return None if batches are identified by their position instead.
        """
        return record_files(self.opened)

    def of_worker(self, rank: int, files: Sequence[str] | None) -> BatchSource | None:
        """Return the data of a different worker, or None if only that worker's process can read it.

        files: the files that worker read, if known.
        """
        read = getattr(self.opened, "of_worker", None)
        theirs = read(rank, files) if callable(read) else None
        return None if theirs is None else BatchSource(theirs, self._as_batch)

    def begin_pass(self, start: PassStart | None = None) -> BatchFeed:
        """Start a pass at the first batch, or at `start`."""
        start = None if start is None else start.for_data(self._data)
        if start is not None and start.is_through and not self._may_be_shared(start):
            return BatchFeed(iter(()), self._as_batch, before=start.own())
        own = None if start is None else start.own()
        now = DataPosition(random_at_start=random_state())
        if start is not None and (left := self._left_of(self._data, start, now)) is not None:
            return left
        is_loaded = start is not None and start.load_into(self._data)
        if not is_loaded and own is not None and own.random_at_start is not None:
            set_random_state(own.random_at_start)
        before = DataPosition(random_at_start=random_state())
        batches = self._open()
        if not isinstance(batches, Iterable):
            raise ConfigError(
                f"the data function must return an iterator, got a {type(batches).__name__}"
            )
        data = self.opened = self._data if isinstance(self._data, StatefulData) else batches
        if start is not None and (left := self._left_of(data, start, before)) is not None:
            return left
        if start is not None and not is_loaded:
            start = start.for_data(batches)
            own = start.own()
            if start.is_through:  # this worker's data; the function's result is not shared
                return BatchFeed(iter(()), self._as_batch, before=own)
            is_loaded = start.load_into(batches)
        iterator = iter(batches)
        if start is not None and not is_loaded:
            if own is not None:
                skip_batches(iterator, own.batches)
                before = replace(before, batches=own.batches)
            else:
                start.warn_of_restart()
        close = None if iterator is self._data else getattr(iterator, "close", None)
        return BatchFeed(
            iterator,
            self._as_batch,
            data=data,
            before=before,
            close=close if callable(close) else None,
            applied=None if start is None else start.applied,
        )

    def _left_of(self, data: object, start: PassStart, before: DataPosition) -> BatchFeed | None:
        """Return the rest of a pass that a previous process left unfinished.

        Return None unless the data's batches are identified by their records.
        """
        files, applied = record_files(data), start.applied
        if files is None or applied is None or not isinstance(data, MarkedData):
            return None
        own = start.own()
        state, then = None if own is None else own.state, None
        rest_of_epoch = getattr(data, "rest_of_epoch", None)
        if getattr(data, "is_shared", False) is True and callable(rest_of_epoch):
            data, then = rest_of_epoch(state)
        assert isinstance(data, MarkedData)
        left = RecordPasses(data, state, applied, then)
        return BatchFeed(
            left,
            self._as_batch,
            data=left,
            before=before,
            close=left.close,
            applied=applied,
            files=files,
        )

    def _may_be_shared(self, start: PassStart) -> bool:
        """Return whether the data is a function that could return shared data with batches left."""
        is_function = not isinstance(self._data, Iterable)
        return is_function and start.together is not None and not start.together.is_through


def _length_of(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # a DataLoader over a stream raises TypeError
        return None
