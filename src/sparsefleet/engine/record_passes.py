"""Reads the rest of a pass over files after the process that started it has exited.

If several threads read files in any order, a batch is identified by its records, that is, by
positions in files, which servers remember. A process that replaces another first reads the records
that only some servers have applied, in separate batches, and then all other records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sparsefleet.data.progress import (
    END_OF_FILE,
    FileMark,
    Progress,
    add_span,
    missing_spans,
)
from sparsefleet.engine.applied_batches import AppliedBatches, Interval
from sparsefleet.modes.mode_setting import BatchOrigin

__all__ = ["MarkedData", "RecordPasses", "record_files", "records_of"]


class Taken(NamedTuple):
    """A batch and the records in it; see `sparsefleet.data.reader_pass.MarkedBatch`."""

    batch: Any
    marks: list[FileMark]


class MarkedBatches(Protocol):
    """One pass over batches that are identified by their records."""

    def take(self) -> Any:
        """Return the next batch as `Taken`, or None at the end of the pass."""


@runtime_checkable
class MarkedData(Protocol):
    """Data from files in any order, as read by a `Reader` with several threads."""

    @property
    def record_files(self) -> Sequence[str] | None:
        """Return the files, the same in each process, or None if batches come in a fixed order."""

    def __iter__(self) -> Iterator[Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def record_files(data: object) -> dict[str, int] | None:
    """Return the files whose records identify batches, with their numbers.

    Return None if batches are identified by their position instead.
    """
    found = data.record_files if isinstance(data, MarkedData) else None
    return None if found is None else {path: number for number, path in enumerate(found)}


def records_of(files: Mapping[str, int], marks: Iterable[FileMark]) -> tuple[Interval, ...]:
    """Return the records of a batch as intervals of numbered files."""
    return tuple(
        Interval(files[mark.path], mark.begin, mark.end) for mark in marks if mark.begin < mark.end
    )


class RecordPasses:
    """The rest of a pass, as an iterator of batches that tracks its position. Thread-safe.

    start: the state of the data when the pass started.
    applied: the part of the pass that servers have applied.
    then: starts reading the part of the pass that the previous process had not started.
    """

    def __init__(
        self,
        data: MarkedData,
        start: Mapping[str, Any] | None,
        applied: AppliedBatches,
        then: Callable[[], MarkedBatches] | None = None,
    ) -> None:
        self._then = then
        files = list(data.record_files or ())
        done: dict[str, list[list[int]]] = dict(getattr(data, "read_before", {}))
        for file, begin, end in applied.records():
            done[files[file]] = [*done.get(files[file], []), [begin, end]]
        everywhere = _add(start or {}, {"done": [], "records": done})
        self._data = data
        self._progress = Progress.from_state(everywhere, None)
        self._left: list[tuple[dict[str, Any], BatchOrigin]] = []
        for origin in applied.partial_records():
            self._left.append((_add(everywhere, _all_but(files, origin.records[0])), origin))
            everywhere = _add(everywhere, _only(files, origin.records[0]))
        self._left.append((everywhere, BatchOrigin(0, 0)))
        self._left.reverse()
        self._pass: MarkedBatches | None = None
        self._read_before: Mapping[str, Sequence[Sequence[int]]] = {}
        self.origin = BatchOrigin(0, 0)
        """Which servers have already applied the last batch taken."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        taken = self.take()
        if taken is None:
            raise StopIteration
        return taken.batch

    def take(self) -> Taken | None:
        """Return the next batch and its records, or None at the end of the pass."""
        while True:
            if self._pass is None:
                if not self._left and self._then is not None:
                    self._pass, self._then = self._then(), None
                    self._read_before, self.origin = {}, BatchOrigin(0, 0)
                    continue
                if not self._left:
                    return None
                state, self.origin = self._left.pop()
                self._read_before = state["records"]
                self._data.load_state_dict(state)
                self._pass = iter(self._data)  # type: ignore[assignment]
            assert self._pass is not None
            taken: Taken | None = self._pass.take()
            if taken is not None:
                marks = [new for mark in taken.marks for new in self._new_in(mark)]
                self._progress.advance(marks)
                return Taken(taken.batch, marks)
            self._pass = None

    def _new_in(self, mark: FileMark) -> list[FileMark]:
        """Return the records of a batch that have not been read yet."""
        before = tuple((begin, end) for begin, end in self._read_before.get(mark.path, ()))
        return [
            FileMark(mark.path, begin, end, mark.total)
            for begin, end in missing_spans(before, mark.begin, mark.end)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return which records were handed out, by this process or by the previous one."""
        return self._progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise NotImplementedError: this pass is read once, from where it was interrupted."""
        raise NotImplementedError(
            "the rest of an interrupted pass cannot be repositioned: resume the data it came from"
        )

    def finished_state_dict(self) -> dict[str, Any]:
        """Return `state_dict()`."""
        return self.state_dict()

    def close(self) -> None:
        """Stop reading the rest of the pass."""
        self._left.clear()
        self._then = None
        close = getattr(self._pass, "close", None)
        if close is not None:
            close()


def _add(state: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of the same reader in which these records are also marked as read."""
    records = {path: tuple(map(tuple, spans)) for path, spans in state.get("records", {}).items()}
    for path, spans in more["records"].items():
        for begin, end in spans:
            records[path] = add_span(records.get(path, ()), (begin, end))
    done = sorted({*state.get("done", ()), *more["done"]})
    kept = {path: [list(span) for span in records[path]] for path in sorted(records)}
    return {"version": 2, **state, **more, "is_over": False, "done": done, "records": kept}


def _all_but(files: Sequence[str], only: Interval) -> dict[str, Any]:
    """Return a state in which everything except these records is marked as read."""
    rest = ((0, only.begin), (only.end, END_OF_FILE))
    spans = [[begin, end] for begin, end in rest if begin < end]
    others = [path for number, path in enumerate(files) if number != only.file]
    return {"done": others, "records": {files[only.file]: spans}}


def _only(files: Sequence[str], only: Interval) -> dict[str, Any]:
    """Return a state in which only these records are marked as read."""
    return {"done": [], "records": {files[only.file]: [[only.begin, only.end]]}}
