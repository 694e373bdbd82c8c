"""How far a pass over the data has come, and going on from there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sparsefleet.errors import CheckpointError, ConfigError

__all__ = ["DataPosition", "PassStart", "StatefulData", "skip_batches"]

_log = logging.getLogger("sparsefleet.train")


@runtime_checkable
class StatefulData(Protocol):
    """Data that knows how far it has come, as `sparsefleet.data.Reader` does."""

    def state_dict(self) -> dict[str, Any]:
        """What the pass under way has given, of plain lists, dicts, texts and numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPosition:
    """What of one worker's data was trained on in the pass under way.

    >>> DataPosition.from_json(DataPosition(batches=3).to_json()).batches
    3
    """

    batches: int = 0
    """Batches trained on since the pass began; with `state`, since it was begun or resumed."""

    state: Mapping[str, Any] | None = None
    """Where the data can tell: its `state_dict()`."""

    random_at_start: Mapping[str, Any] | None = None
    """Where it cannot: the random generators when the pass began, so that data that is shuffled
    comes in the same order again."""

    def to_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "state": self.state,
            "random_at_start": self.random_at_start,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> DataPosition:
        """The inverse of `to_json`."""
        try:
            return DataPosition(
                batches=int(found["batches"]),
                state=found["state"],
                random_at_start=found["random_at_start"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"this is no position in training data: {found!r:.200}"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class PassStart:
    """Where a pass begins that goes on with one of an earlier run."""

    positions: Sequence[DataPosition] = field(default_factory=list)
    """This worker's; or those of all workers of the earlier run, if there were more or fewer."""

    is_through: bool = False
    """There was nothing left to train on in this pass."""

    together: PassStart | None = None
    """The same of all workers, for data that they share: what one has left is for any of them."""

    def for_data(self, data: object) -> PassStart:
        """This, or where all workers are, as `data` wants it: `Reader.is_shared` tells."""
        is_shared = getattr(data, "is_shared", False) is True
        return self.together if is_shared and self.together is not None else self

    def own(self) -> DataPosition | None:
        """This worker's position, where each has the data it had before."""
        return self.positions[0] if len(self.positions) == 1 else None

    def load_into(self, data: object) -> bool:
        """Has `data` go on there; False if it has no memory of its own for that.

        Data that was dealt to another number of workers must bring `load_state_dicts`, which
        takes the states of all; without it the pass begins anew, which is logged.
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

    def tell_beginning_anew(self) -> None:
        """For data that cannot go on: what was seen of it will be seen again."""
        _log.warning(
            "the checkpoint is of %d workers, and this data cannot be taken up by another number: "
            "the epoch that was under way begins anew (data.Reader can go on)",
            len(self.positions),
        )


def skip_batches(batches: Iterator[Any], count: int) -> None:
    """Reads over `count` batches that were trained on before."""
    if count:
        _log.info("reading over %d batches that were trained on before", count)
    for number in range(count):
        if next(batches, batches) is batches:
            raise ConfigError(
                f"the data has {number} batches, but the checkpoint was made after {count}: it is "
                "other data. Load the model without its position: Trainer.load(directory)"
            )
