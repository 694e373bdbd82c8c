"""Readers that can resume at an exact item.

A reader is a function without arguments that returns an iterator over items. The readers in this
module are callable objects that can also resume at the exact item after a stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.errors import ConfigError, DataError

__all__ = ["FunctionReader", "PassProgress", "ReaderFunction", "ResumableReader", "resumable"]

ReaderFunction = Callable[[], Iterable[Any]]

_VERSION = 1


@dataclass
class PassProgress:
    """The position in a pass; kept after the pass has ended."""

    number: int
    """The number of the pass, from 0."""
    position: Any = None
    """The position after the last item that was returned."""
    is_over: bool = False


class ResumableReader(ABC):
    """A reader over other readers. Each call starts a pass over all items.

    An item's position is the state of the pass after it, as lists and numbers. The position is
    passed along with the item through threads and processes, so that items that were read ahead
    but not consumed do not count. Passes are counted, since each is shuffled differently.
    """

    kind = "function"
    """The name of the reader's operation, with the settings that positions depend on."""
    sources: tuple[ResumableReader, ...] = ()
    seed: int | None = None
    """The seed of a shuffling reader."""

    def __init__(self) -> None:
        self._progress = PassProgress(-1, is_over=True)  # before the first pass
        self._loaded: PassProgress | None = None

    @abstractmethod
    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the items after `position`, or all items if it is None, with their positions."""

    def describe(self) -> str:
        """Return a description of how the reader was built.

        A state can only be loaded into a reader with the same description.
        """
        inner = ", ".join(source.describe() for source in self.sources)
        return f"{self.kind}({inner})"

    def seeds(self) -> list[int]:
        """Return the seeds of all shuffling readers, in the order of `describe`."""
        own = [] if self.seed is None else [self.seed]
        return own + [seed for source in self.sources for seed in source.seeds()]

    def begin(self) -> tuple[PassProgress, Iterator[tuple[Any, Any]]]:
        """Start the next pass; yield its items with their positions. The caller tracks the
        progress.
        """
        self._progress = self._loaded or PassProgress(self._progress.number + 1)
        self._loaded = None
        return self._progress, self.walk(self._progress.number, self._progress.position)

    def __call__(self) -> Iterator[Any]:
        """Yield the items of one pass.

        The first pass after `load_state_dict` resumes the saved pass.
        """
        return self._items(*self.begin())

    def _items(self, progress: PassProgress, walk: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        for item, progress.position in walk:
            yield item
        progress.is_over = True

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current pass, or the start of the next pass if it is over.

        The position consists of lists, dicts, strings and numbers.
        """
        progress = self._loaded or self._progress
        if progress.is_over:
            progress = PassProgress(progress.number + 1)
        return self._state_at(progress)

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict`, but resuming from the end of a pass yields no items."""
        return self.state_dict() if self._progress.number < 0 else self._state_at(self._progress)

    def rewind(self) -> None:
        """Abandon the current pass. The next pass starts over, unless a state was loaded."""
        if self._loaded is None:
            self._progress.is_over = True

    def _state_at(self, progress: PassProgress) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "reader": self.describe(),
            "seeds": self.seeds(),
            "pass": progress.number,
            "position": progress.position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from the position in `state`. Later passes start over.

        The reader must be built the same way, and its functions must return the same items.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(
                f"load_state_dict: expected the state of a reader, got {state!r:.200}"
            )
        if state.get("reader") != self.describe():
            raise ConfigError(
                f"the state belongs to {state.get('reader')}, but this reader is "
                f"{self.describe()}; build it the same way"
            )
        try:
            seeds = [int(seed) for seed in state["seeds"]]
            loaded = PassProgress(int(state["pass"]), state["position"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"load_state_dict: expected the state of a reader, got {state!r:.200}"
            ) from error
        if len(seeds) != len(self.seeds()):
            raise ConfigError(f"the state has {len(seeds)} seeds, expected {len(self.seeds())}")
        self._adopt(iter(seeds))
        self._loaded = self._progress = loaded

    def _adopt(self, seeds: Iterator[int]) -> None:
        if self.seed is not None:
            self.seed = next(seeds)
        for source in self.sources:
            source._adopt(seeds)


class FunctionReader(ResumableReader):
    """A user's reader function, which resumes by reading again and skipping items."""

    def __init__(self, function: ReaderFunction) -> None:
        super().__init__()
        self._function = function

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ARG002
        had = int(position or 0)
        number = 0
        for number, item in enumerate(self._function(), 1):
            if number > had:
                yield item, number
        if number < had:
            raise DataError(
                f"a reader ended after {number} items, but {had} were read before its state was "
                "saved; the data has changed"
            )


def resumable(reader: ReaderFunction) -> ResumableReader:
    """Return a reader with `state_dict` and `load_state_dict`, or `reader` itself if it has both.

    A function must return the same items in each pass.

    >>> numbers = resumable(lambda: iter(range(5)))
    >>> items = numbers()
    >>> next(items), next(items)
    (0, 1)
    >>> again = resumable(lambda: iter(range(5)))
    >>> again.load_state_dict(numbers.state_dict())
    >>> list(again()), list(again())
    ([2, 3, 4], [0, 1, 2, 3, 4])
    """
    if isinstance(reader, ResumableReader):
        return reader
    if not callable(reader):
        raise TypeError(
            "a reader must be a function without arguments that returns an iterator, got "
            f"{type(reader).__name__}"
        )
    return FunctionReader(reader)
