"""Several metrics over the same predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.metrics.metric import Batch, Frame, Metric, pack, require_alike, unpack, unpack_all

__all__ = ["MetricSet"]

_KIND = "MetricSet"


class MetricSet(Mapping[str, Metric]):
    """Metrics by name that are updated, merged, sent and computed together.

    A failed call changes none of the metrics. Like `Metric`, not thread-safe.

    >>> import numpy as np
    >>> from sparsefleet.metrics import AUC, Accuracy
    >>> metrics = MetricSet({"auc": AUC(), "accuracy": Accuracy()})
    >>> metrics.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> metrics.compute()
    {'auc': 0.75, 'accuracy': 0.75}
    >>> MetricSet.from_state(metrics.state())["auc"].compute()
    0.75
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        for name, metric in metrics.items():
            if not isinstance(name, str) or not isinstance(metric, Metric):
                raise ConfigError(
                    f"MetricSet: expected names and Metrics, got {name!r}: {metric!r}"
                )
        if len({id(metric) for metric in metrics.values()}) != len(metrics):
            raise ConfigError(
                "MetricSet: the same object is registered under two names and would count twice; "
                "create one metric per name"
            )
        self._metrics = dict(metrics)

    def update(self, predictions: Any, labels: Any, *, groups: Any = None) -> None:
        """Add one batch to every metric; the arguments are the same as for `Metric.update`."""
        batch = Batch(predictions, labels, groups)
        parts = [metric.measure(batch) for metric in self._metrics.values()]
        for metric, part in zip(self._metrics.values(), parts, strict=True):
            metric.add(part)

    def compute(self) -> dict[str, float]:
        """Return each metric's value by name; nan if undefined."""
        return {name: metric.compute() for name, metric in self._metrics.items()}

    def reset(self) -> None:
        """Forget all examples."""
        for metric in self._metrics.values():
            metric.reset()

    def empty_copy(self) -> MetricSet:
        """Return the same metrics without examples, for example for use in another thread."""
        return MetricSet({name: metric.empty_copy() for name, metric in self._metrics.items()})

    def merge(self, other: MetricSet) -> None:
        """Add the examples of `other`. Raises ConfigError unless names and settings match."""
        if not isinstance(other, MetricSet):
            raise ConfigError(f"cannot merge a {type(other).__name__} into a MetricSet")
        self._require_names(list(other))
        for name, metric in self._metrics.items():
            theirs = other[name]
            require_alike((theirs.kind, theirs.settings), (metric.kind, metric.settings))
        for name, metric in self._metrics.items():
            metric.merge(other[name])

    def state(self) -> bytes:
        """Return the states of all metrics; the layout is in docs/metrics.md."""
        payload = b"".join(metric.state() for metric in self._metrics.values())
        return pack(_KIND, {"names": list(self._metrics)}, payload)

    def merge_state(self, state: bytes) -> None:
        """Merge the `state()` of another set."""
        frames = _members(state)
        self._require_names(list(frames))
        parts = []
        for name, metric in self._metrics.items():
            frame = frames[name]
            require_alike((frame.kind, frame.settings), (metric.kind, metric.settings))
            parts.append(metric.parse(frame.payload))
        for metric, part in zip(self._metrics.values(), parts, strict=True):
            metric.add(part)

    @classmethod
    def from_state(cls, state: bytes) -> MetricSet:
        """Return the set with this `state()`."""
        metrics = {}
        for name, frame in _members(state).items():
            metrics[name] = Metric.from_settings(frame.kind, frame.settings)
            metrics[name].add(metrics[name].parse(frame.payload))
        return cls(metrics)

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"MetricSet({self._metrics!r})"

    def _require_names(self, found: list[str]) -> None:
        if set(found) != set(self._metrics):
            raise ConfigError(
                f"cannot merge metrics {sorted(found)} into metrics {sorted(self._metrics)}: the "
                "names must match"
            )


def _members(state: bytes) -> dict[str, Frame]:
    """Return the state of each metric in the state of a set, by name."""
    outer = unpack(state)
    if outer.kind != _KIND:
        raise ConfigError(f"metric state: expected {_KIND}, got {outer.kind!r}")
    names = outer.settings.get("names")
    frames = unpack_all(outer.payload)
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not len(set(names)) == len(names) == len(frames)
    ):
        raise ConfigError(f"metric state: {len(frames)} metrics do not match the names {names!r}")
    return dict(zip(names, frames, strict=True))
