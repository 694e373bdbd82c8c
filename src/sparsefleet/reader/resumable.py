"""Readers that know where they are.

A reader is a function without arguments that returns an iterator over items. Those made here are
objects that can be called as well, and go on after a stop at the very item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sparsefleet.errors import ConfigError, DataError

__all__ = ["FunctionReader", "ReaderFunction", "ResumableReader", "resumable"]

ReaderFunction = Callable[[], Iterable[Any]]

_VERSION = 1


class ResumableReader(ABC):
    """A reader over other readers. Each call begins a pass over all items.

    An item's position is where the pass stands after it, in lists and numbers; it travels with the
    item through threads and processes, so that what was read ahead and not taken does not count.
    Passes are counted, as each is shuffled in another way.
    """

    kind = "function"
    """What it does to its sources, with the settings that positions depend on."""
    sources: tuple[ResumableReader, ...] = ()
    seed: int | None = None
    """Of a reader that shuffles."""

    def __init__(self) -> None:
        self._pass_number = 0
        self._position: Any = None
        self._loaded = True

    @abstractmethod
    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        """The items after `position`, each with its own; None: all."""

    def describe(self) -> str:
        """What it is made of: a state is of readers that were made in the same way."""
        inner = ", ".join(source.describe() for source in self.sources)
        return f"{self.kind}({inner})"

    def seeds(self) -> list[int]:
        """Of all that shuffle, in the order of `describe`."""
        own = [] if self.seed is None else [self.seed]
        return own + [seed for source in self.sources for seed in source.seeds()]

    def begin(self) -> tuple[int, Iterator[tuple[Any, Any]]]:
        """The number of the next pass, and its items with their positions."""
        if self._loaded:
            self._loaded = False
        else:
            self._pass_number += 1
            self._position = None
        return self._pass_number, self.walk(self._pass_number, self._position)

    def __call__(self) -> Iterator[Any]:
        """One pass; the first one after `load_state_dict` is the rest of one."""
        number, walk = self.begin()
        return self._items(number, walk)

    def _items(self, number: int, walk: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        for item, position in walk:
            if number == self._pass_number:
                self._position = position
            yield item
        if number == self._pass_number:
            self._pass_number, self._position, self._loaded = number + 1, None, True

    def state_dict(self) -> dict[str, Any]:
        """Where the last pass that was begun is; at its end, the beginning of the next one.

        Of plain lists, dicts, texts and numbers.
        """
        return self.state_at(self._pass_number, self._position)

    def state_at(self, pass_number: int, position: Any) -> dict[str, Any]:
        """The state of a pass that stands at `position`."""
        return {
            "version": _VERSION,
            "reader": self.describe(),
            "seeds": self.seeds(),
            "pass": pass_number,
            "position": position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on after the item where `state` was taken; later ones are whole.

        The reader must be made in the same way, and its functions must give the same items.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(f"this is no state of a reader: {state!r:.200}")
        if state.get("reader") != self.describe():
            raise ConfigError(
                f"the state is of {state.get('reader')}, this reader is {self.describe()}: make "
                "it in the same way"
            )
        try:
            self._adopt(iter([int(seed) for seed in state["seeds"]]))
            self._pass_number, self._position = int(state["pass"]), state["position"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is no state of a reader: {state!r:.200}") from error
        self._loaded = True

    def _adopt(self, seeds: Iterator[int]) -> None:
        if self.seed is not None:
            self.seed = next(seeds)
        for source in self.sources:
            source._adopt(seeds)


class FunctionReader(ResumableReader):
    """A function that was given: it goes on by reading anew and leaving out what was had."""

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
                f"a reader ended after {number} items, but {had} had been read when its state was "
                "saved: its data has changed"
            )


def resumable(reader: ReaderFunction) -> ResumableReader:
    """The same reader with `state_dict` and `load_state_dict`; itself if it has them.

    A function must give the same items in each pass.

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
            f"a reader is a function without arguments that returns an iterator, got "
            f"{type(reader).__name__}"
        )
    return FunctionReader(reader)
