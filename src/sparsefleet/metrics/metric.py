"""What every metric has: update, compute, merge, reset, and its state as bytes.

Letters: B examples, C classes.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.state_format import Settings, describe, pack, require_alike, unpack

__all__ = ["CountMetric", "Metric"]

MetricT = TypeVar("MetricT", bound="Metric")


class Metric(ABC):
    """A figure over all examples seen, which comes out the same however they were divided.

    Merging adds integers or joins samples, never floats, so that any split of the examples over
    threads and workers, merged in any order, computes to the same bits as one object that saw all.

    Not thread-safe: give each thread its own (`empty_copy`) and merge them.

    >>> from sparsefleet.metrics import AUC
    >>> first, second = AUC(), AUC()
    >>> first.update(np.array([0.1, 0.4]), np.array([0, 0]))
    >>> second.update(np.array([0.35, 0.8]), np.array([1, 1]))
    >>> first.merge(second)
    >>> first.compute()
    0.75
    """

    def update(self, predictions: Any, labels: Any, *, groups: Any = None) -> None:
        """Counts one batch. Raises ConfigError or ShapeError for bad input and then counts nothing.

        predictions: probabilities, float32 or float64 of shape [B], [B, 1], or [B, 2] of which
            column 1 is taken. NumPy arrays or CPU tensors, as are the others.
        labels: 0 or 1, of any number type, [B] or [B, 1].
        groups: integers [B] or [B, 1]; only metrics by group read them.
        """
        self.add(self.measure(Batch(predictions, labels, groups)))

    @abstractmethod
    def compute(self) -> float:
        """The figure; nan where it is undefined, as it is before any data."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets all examples, keeps the settings."""

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """The arguments of the constructor; only metrics with equal ones can be merged."""

    def merge(self, other: Metric) -> None:
        """Adds what `other` has seen, and leaves `other` as it is.

        Raises ConfigError if it is another metric or has other settings.
        """
        if not isinstance(other, Metric):
            raise ConfigError(f"cannot merge a {type(other).__name__} into {self!r}")
        require_alike((other.kind, other.settings), (self.kind, self.settings))
        self.add(other.contents())

    def state(self) -> bytes:
        """All that this metric has seen, to be sent or kept; layout in docs/metrics.md."""
        return pack(self.kind, self.settings, self.contents().tobytes())

    def merge_state(self, state: bytes) -> None:
        """As `merge`, from the bytes of the other's `state()`."""
        frame = unpack(state)
        require_alike((frame.kind, frame.settings), (self.kind, self.settings))
        self.add(self.parse(frame.payload))

    @classmethod
    def from_state(cls: type[MetricT], state: bytes) -> MetricT:
        """The metric whose `state()` this is: of any class from `Metric`, else of this one."""
        frame = unpack(state)
        metric = cls.from_settings(frame.kind, frame.settings)
        metric.add(metric.parse(frame.payload))
        return metric

    @classmethod
    def from_settings(cls: type[MetricT], kind: str, settings: Settings) -> MetricT:
        """An empty metric of the class named `kind`, which is this one or below it."""
        for candidate in _family(cls):
            if candidate.__name__ == kind and not inspect.isabstract(candidate):
                try:
                    return candidate(**settings)
                except TypeError as error:
                    raise ConfigError(
                        f"metric state: {describe(kind, settings)}: {error}"
                    ) from None
        raise ConfigError(f"metric state: it is of {kind!r}, wanted {cls.__name__}")

    def empty_copy(self: MetricT) -> MetricT:
        """A metric with the same settings that has seen nothing, as for another thread."""
        return type(self)(**self.settings)

    @property
    def kind(self) -> str:
        """The name that stands in the state: that of the class."""
        return type(self).__name__

    def __repr__(self) -> str:
        return describe(self.kind, self.settings)

    # What a metric of one's own has to define besides. `update` is `add(measure(batch))`: nothing
    # is counted before the whole batch has been found good, by all metrics of a set.

    @abstractmethod
    def measure(self, batch: Batch) -> NDArray[Any]:
        """What `batch` contributes, as `contents()` would be after it alone. Changes nothing."""

    @abstractmethod
    def add(self, part: NDArray[Any]) -> None:
        """Adds what `measure`, `contents` or `parse` gave; the order of parts never matters."""

    @abstractmethod
    def contents(self) -> NDArray[Any]:
        """All parts so far, as one array of little-endian numbers; valid until the next call."""

    @abstractmethod
    def parse(self, payload: memoryview) -> NDArray[Any]:
        """The array whose bytes these are; raises ConfigError if they cannot be."""


class CountMetric(Metric):
    """A metric that is a function of a few counts, so merging is adding them.

    Subclasses call `__init__` with the shape of their counts, and define `measure`.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._counts = np.zeros(shape, "<i8")

    def reset(self) -> None:
        self._counts[...] = 0

    def add(self, part: NDArray[Any]) -> None:
        self._counts += part

    def contents(self) -> NDArray[Any]:
        return self._counts

    def parse(self, payload: memoryview) -> NDArray[Any]:
        if len(payload) != self._counts.nbytes:
            raise ConfigError(
                f"metric state: {len(payload)} bytes of counts for {self!r}, "
                f"wanted {self._counts.nbytes}"
            )
        counts = np.frombuffer(payload, "<i8").reshape(self._counts.shape)
        if counts.min() < 0:
            raise ConfigError(f"metric state: a count of {self!r} is negative")
        return counts


def _family(cls: type[MetricT]) -> Iterator[type[MetricT]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _family(child)
