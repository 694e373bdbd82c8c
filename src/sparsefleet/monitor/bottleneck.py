"""Identifies the bottleneck of training from the time spent on each activity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Bottleneck", "find_bottleneck"]

_SEVERE = 0.3  # any activity but computing above this share is the bottleneck
_ADVICE = {
    "data": "reading batches is the bottleneck; read ahead (a DataLoader with workers, "
    "prefetch=True), parse less in Python, or keep the data in memory",
    "pull": "fetching rows is the bottleneck; use larger batches, a mode that may prefetch (async, "
    "geo), more servers, or a faster link",
    "push": (
        "pushing gradients is the bottleneck; use larger batches, more servers, a mode that "
        "sends in the background (async, geo) or, in sync, workers of equal speed"
    ),
    "wait": (
        "threads wait for each other or for the sender; use async, geo, a larger send queue, or "
        "batches of equal size"
    ),
    "other": "the Python code around the steps is the bottleneck; use larger batches, or "
    "workers instead of threads",
    "compute": (
        "computing is the bottleneck, as it should be; add cores, threads or workers to go faster"
    ),
}
_LOCAL_ADVICE = {
    "pull": "looking up rows is the bottleneck; use larger batches, or fewer distinct ids per "
    "batch",
    "push": "applying gradients is the bottleneck; use larger batches, or fewer distinct ids "
    "per batch",
}
"""Advice for training without servers."""


class Bottleneck(NamedTuple):
    """The activity that limits the speed, its share of the time, and a remedy."""

    activity: str
    share: float
    advice: str

    def __str__(self) -> str:
        return f"{100 * self.share:.0f}% {self.activity}: {self.advice}"


def find_bottleneck(seconds: Mapping[str, float], *, is_local: bool = False) -> Bottleneck | None:
    """Return the bottleneck, given the training threads' seconds by activity.

    Return None if no thread has computed. is_local: whether tables are in the worker's own process.

    >>> find_bottleneck({"compute": 5.0, "data": 4.0}).activity
    'data'
    >>> find_bottleneck({"compute": 9.0, "data": 1.0}).activity
    'compute'
    """
    if seconds.get("compute", 0.0) <= 0:
        return None
    total = sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items()}
    computing = shares.pop("compute")
    name = max(shares, key=lambda part: shares[part], default="compute")
    share = shares.get(name, 0.0)
    if computing >= share and share < _SEVERE:
        name, share = "compute", computing
    advice = {**_ADVICE, **_LOCAL_ADVICE} if is_local else _ADVICE
    return Bottleneck(name, share, advice[name])
