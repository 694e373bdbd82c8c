"""The base class of metrics, and the checked batch that updates them.

In shapes, B is the number of examples and C the number of classes.
"""

from __future__ import annotations

import inspect
import json
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError

__all__ = ["Batch", "CountMetric", "Metric"]


class Batch:
    """One batch, checked once and then read by any number of metrics.

    Arrays may share memory with the arguments, so read them before the caller modifies the
    arguments.
    """

    def __init__(self, predictions: Any, labels: Any, groups: Any = None) -> None:
        self._raw = _as_floats(predictions)
        self.size = len(self._raw)
        self._labels = self._column("labels", labels)
        self._groups = None if groups is None else self._column("groups", groups)

    @cached_property
    def predictions(self) -> NDArray[Any]:
        """Probabilities, float32 or float64, [B] or [B, C] with C >= 2, in 0..1."""
        array = self._raw
        # A NaN makes both ends NaN, so one comparison finds it too.
        if array.size > 0 and not (array.min() >= 0 and array.max() <= 1):
            _refuse("predictions", array, ~((array >= 0) & (array <= 1)), "probabilities in 0..1")
        return array

    @cached_property
    def values(self) -> NDArray[Any]:
        """Return the predictions, which may be any finite numbers, float32 or float64 [B]."""
        if self._raw.ndim != 1:
            raise ShapeError(
                f"predictions must have shape [B] or [B, 1], got {list(self._raw.shape)}"
            )
        return _finite("predictions", self._raw)

    @cached_property
    def targets(self) -> NDArray[Any]:
        """Return the labels, which may be any finite numbers, [B]."""
        return _finite("labels", self._labels)

    @cached_property
    def scores(self) -> NDArray[Any]:
        """Return the probability of class 1, float32 or float64 [B]."""
        if self.predictions.ndim == 1:
            return self.predictions
        if self.predictions.shape[1] != 2:
            raise ShapeError(
                "predictions must have shape [B], [B, 1] or [B, 2] for a binary metric, "
                f"got {list(self.predictions.shape)}"
            )
        return self.predictions[:, 1]

    @cached_property
    def positive(self) -> NDArray[np.bool_]:
        """Return whether each label is 1, bool[B]."""
        labels = self._labels
        ones: NDArray[np.bool_] = labels == 1
        if np.count_nonzero(ones) + np.count_nonzero(labels == 0) != self.size:
            _refuse("labels", labels, (labels != 0) & (labels != 1), "0 or 1")
        return ones

    def classes(self, num_classes: int) -> NDArray[Any]:
        """Return the labels as class indices 0..num_classes-1, int or float [B]."""
        labels = self._labels
        legal = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
        if not legal.all():
            _refuse("labels", labels, ~legal, f"whole numbers in 0..{num_classes - 1}")
        return labels

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Return the group of each example, int64[B]; uint64 is reinterpreted, like table keys."""
        if self._groups is None:
            raise ConfigError(
                "groups are missing: a grouped metric needs update(predictions, labels, groups=...)"
            )
        if self._groups.dtype.kind not in "iu":
            raise ConfigError(f"groups must be integers, got {self._groups.dtype}")
        if self._groups.dtype == np.uint64:
            return np.ascontiguousarray(self._groups).view(np.int64)
        return self._groups.astype(np.int64, copy=False)

    def _column(self, what: str, values: Any) -> NDArray[Any]:
        array = _as_array(what, values)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ShapeError(f"{what} must have shape [B] or [B, 1], got {list(array.shape)}")
        if len(array) != self.size:
            raise ShapeError(
                f"got {len(array)} {what} for {self.size} predictions, expected one per prediction"
            )
        if array.dtype == np.bool_:
            return array.view(np.uint8)
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{what} must be numbers, got {array.dtype}")
        return array


def _as_array(what: str, values: Any) -> NDArray[Any]:
    """Return the values as a NumPy array; arrays and CPU tensors are not copied."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):  # a torch tensor; avoids importing torch here
        if values.device.type != "cpu":
            raise ConfigError(f"{what} are on device '{values.device}': move them with .cpu()")
        tensor = values.detach()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"{what} do not form an array: {error}") from None


def _finite(what: str, values: NDArray[Any]) -> NDArray[Any]:
    finite = np.isfinite(values)
    if not finite.all():
        _refuse(what, values, ~finite, "finite numbers")
    return values


def _as_floats(values: Any) -> NDArray[Any]:
    array = _as_array("predictions", values)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise ShapeError(
            f"predictions must have shape [B], [B, 1] or [B, C], got {list(array.shape)}"
        )
    if array.dtype.kind != "f":
        if array.size > 0:
            raise ConfigError(f"predictions must be float32 or float64, got {array.dtype}")
        array = array.astype(np.float32)
    if array.dtype.itemsize not in (4, 8) or not array.dtype.isnative:
        array = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _refuse(what: str, values: NDArray[Any], bad: NDArray[np.bool_], wanted: str) -> None:
    first = tuple(np.argwhere(bad)[0].tolist())
    hint = "; apply a sigmoid or softmax to logits first" if what == "predictions" else ""
    found = values[first]
    raise ConfigError(
        f"{what} must be {wanted}, got {found} at index {', '.join(map(str, first))} "
        f"({np.count_nonzero(bad)} of {bad.size} are wrong){'' if found != found else hint}"
    )


# Sums of real numbers that do not depend on the order of addition.
#
# A number is rounded once to a multiple of 2**-44 (6e-14) and kept as two integers, which are
# summed separately: unlike floats, integers can be added in any order. For numbers in 0..100 no sum
# overflows an int64 before 10**11 examples.


_FRACTION_BITS = 44
_LOW_BITS = 26
_LOW_MASK = (1 << _LOW_BITS) - 1


def split(numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split each number, 0 <= number <= 100, into two integers whose sums are exact."""
    multiples = np.rint(numbers * float(1 << _FRACTION_BITS)).astype(np.int64)
    return multiples >> _LOW_BITS, multiples & _LOW_MASK


def join(high: Any, low: Any) -> float:
    """Return the correctly rounded sum of the numbers, given the sums of the parts from `split`."""
    return ((int(high) << _LOW_BITS) + int(low)) / (1 << _FRACTION_BITS)


# The format in which metrics are sent and saved. Layout: docs/metrics.md.
#
# No pickle: a JSON header that names the metric and its settings, then plain little-endian numbers.


Settings = dict[str, int | float | str | list[str] | None]

# Format: magic, version, length of the header, length of the payload; the CRC-32 of everything
# comes last.
_PREFIX = struct.Struct("<4sIIQ")
_CRC = struct.Struct("<I")
_MAGIC = b"SFMT"
_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One unpacked metric state."""

    kind: str
    """The class name."""

    settings: Settings
    """The constructor arguments."""

    payload: memoryview
    """The counts."""


def pack(kind: str, settings: Settings, payload: bytes) -> bytes:
    """Return a metric's state as bytes; equal arguments give equal bytes."""
    header = json.dumps(
        {"metric": kind, "settings": settings}, sort_keys=True, separators=(",", ":")
    ).encode()
    head = _PREFIX.pack(_MAGIC, _VERSION, len(header), len(payload)) + header
    return b"".join((head, payload, _CRC.pack(zlib.crc32(payload, zlib.crc32(head)))))


def unpack(state: bytes | memoryview) -> Frame:
    """Decode the bytes returned by `pack`. Raises ConfigError for any other bytes."""
    frames = unpack_all(state)
    if len(frames) != 1:
        raise ConfigError(f"metric state: expected 1 frame, got {len(frames)}")
    return frames[0]


def unpack_all(state: bytes | memoryview) -> list[Frame]:
    """Decode consecutive results of `pack`."""
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise ConfigError(f"metric state: must be bytes, got {type(state).__name__}")
    rest = memoryview(state).cast("B")
    frames = []
    while len(rest) > 0:
        frame, rest = _unpack_first(rest)
        frames.append(frame)
    return frames


def require_alike(found: tuple[str, Settings], wanted: tuple[str, Settings]) -> None:
    """Raise ConfigError unless both are the same metric with the same settings."""
    if found != wanted:
        raise ConfigError(f"cannot merge {describe(*found)} into {describe(*wanted)}")


def describe(kind: str, settings: Settings) -> str:
    """Return the call that constructs a metric of this kind, for messages.

    >>> describe("AUC", {"num_thresholds": 4095, "curve": "ROC"})
    "AUC(num_thresholds=4095, curve='ROC')"
    """
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _unpack_first(state: memoryview) -> tuple[Frame, memoryview]:
    if len(state) < _PREFIX.size or bytes(state[:4]) != _MAGIC:
        raise ConfigError(
            f"metric state: the {len(state)} bytes do not start with the magic number"
        )
    _, version, header_size, payload_size = _PREFIX.unpack_from(state)
    if version != _VERSION:
        raise ConfigError(f"metric state: expected version {_VERSION}, got {version}")
    payload_start = _PREFIX.size + header_size
    end = payload_start + payload_size
    if len(state) < end + _CRC.size:
        raise ConfigError(f"metric state: truncated, {len(state)} of {end + _CRC.size} bytes")
    if zlib.crc32(state[:end]) != _CRC.unpack_from(state, end)[0]:
        raise ConfigError("metric state: wrong checksum; the bytes are damaged")
    kind, settings = _parse_header(bytes(state[_PREFIX.size : payload_start]))
    frame = Frame(kind=kind, settings=settings, payload=state[payload_start:end])
    return frame, state[end + _CRC.size :]


def _parse_header(text: bytes) -> tuple[str, Settings]:
    try:
        header = json.loads(text)
        kind, settings = header["metric"], header["settings"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"metric state: header {text[:80]!r} cannot be read") from None
    if not (isinstance(kind, str) and isinstance(settings, dict)):
        raise ConfigError(f"metric state: header {text[:80]!r} cannot be read")
    return kind, settings


MetricT = TypeVar("MetricT", bound="Metric")


class Metric(ABC):
    """A metric over all examples seen, independent of how they were split.

    Merging adds integers or joins samples and never adds floats, so any split of the examples over
    threads and workers, merged in any order, gives exactly the result of one object.

    Not thread-safe: give each thread its own metric (`empty_copy`) and merge them.

    >>> from sparsefleet.metrics import AUC
    >>> first, second = AUC(), AUC()
    >>> first.update(np.array([0.1, 0.4]), np.array([0, 0]))
    >>> second.update(np.array([0.35, 0.8]), np.array([1, 1]))
    >>> first.merge(second)
    >>> first.compute()
    0.75
    """

    def update(self, predictions: Any, labels: Any, *, groups: Any = None) -> None:
        """Add one batch. Raises ConfigError or ShapeError for bad input, and then adds nothing.

        predictions: probabilities, float32 or float64 of shape [B], [B, 1], or [B, 2] with class 1
            in column 1. NumPy array or CPU tensor, like the other arguments.
        labels: 0 or 1, of any numeric type, [B] or [B, 1].
        groups: integers [B] or [B, 1], for grouped metrics.
        """
        self.add(self.measure(Batch(predictions, labels, groups)))

    @abstractmethod
    def compute(self) -> float:
        """Return the metric, or nan if it is undefined (for example, without data)."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all examples; keep the settings."""

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """Return the constructor arguments; only metrics with equal settings can be merged."""

    def merge(self, other: Metric) -> None:
        """Add the examples of `other`, which is not changed.

        Raises ConfigError if `other` is a different metric or has different settings.
        """
        if not isinstance(other, Metric):
            raise ConfigError(f"cannot merge a {type(other).__name__} into {self!r}")
        require_alike((other.kind, other.settings), (self.kind, self.settings))
        self.add(other.contents())

    def state(self) -> bytes:
        """Return the state for sending or saving; the layout is in docs/metrics.md."""
        return pack(self.kind, self.settings, self.contents().tobytes())

    def merge_state(self, state: bytes) -> None:
        """Merge the `state()` of another metric."""
        frame = unpack(state)
        require_alike((frame.kind, frame.settings), (self.kind, self.settings))
        self.add(self.parse(frame.payload))

    @classmethod
    def from_state(cls: type[MetricT], state: bytes) -> MetricT:
        """Return the metric with this `state()`.

        If called on `Metric`, the result can be of any class; otherwise it must be of this class.
        """
        frame = unpack(state)
        metric = cls.from_settings(frame.kind, frame.settings)
        metric.add(metric.parse(frame.payload))
        return metric

    @classmethod
    def from_settings(cls: type[MetricT], kind: str, settings: Settings) -> MetricT:
        """Return an empty metric of the class named `kind`: this class or a subclass."""
        for candidate in _family(cls):
            if candidate.__name__ == kind and not inspect.isabstract(candidate):
                try:
                    return candidate(**settings)
                except TypeError as error:
                    raise ConfigError(
                        f"metric state: {describe(kind, settings)}: {error}"
                    ) from None
        raise ConfigError(f"metric state: expected {cls.__name__}, got {kind!r}")

    def empty_copy(self: MetricT) -> MetricT:
        """Return a metric with the same settings and no examples, for use in another thread."""
        return type(self)(**self.settings)

    @property
    def kind(self) -> str:
        """Return the name used in the state: the class name."""
        return type(self).__name__

    def __repr__(self) -> str:
        return describe(self.kind, self.settings)

    # The rest is for subclasses. `update` is `add(measure(batch))`, so nothing is added until all
    # metrics in a set have accepted the whole batch.

    @abstractmethod
    def measure(self, batch: Batch) -> NDArray[Any]:
        """Return the contribution of `batch`.

        It equals the `contents()` of a metric that has seen only this batch.
        """

    @abstractmethod
    def add(self, part: NDArray[Any]) -> None:
        """Add the result of `measure`, `contents` or `parse`; the order does not matter."""

    @abstractmethod
    def contents(self) -> NDArray[Any]:
        """Return all parts as one array of little-endian numbers, valid until the next call."""

    @abstractmethod
    def parse(self, payload: memoryview) -> NDArray[Any]:
        """Parse the bytes of `contents()`. Raises ConfigError if they are invalid."""


class CountMetric(Metric):
    """A metric computed from a few counts; merging two metrics adds their counts.

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
                f"expected {self._counts.nbytes}"
            )
        counts = np.frombuffer(payload, "<i8").reshape(self._counts.shape)
        if counts.min() < 0:
            raise ConfigError(
                f"metric state: a count of {self!r} is negative; the bytes are damaged"
            )
        return counts


def _family(cls: type[MetricT]) -> Iterator[type[MetricT]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _family(child)
