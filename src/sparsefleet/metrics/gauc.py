"""AUC within groups: how well the examples of one user, say, are ordered among themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.metric import Metric
from sparsefleet.metrics.state_format import Settings

__all__ = ["GAUC"]

# Format: one example in the state, 17 bytes.
_SAMPLE = np.dtype([("group", "<i8"), ("score", "<f8"), ("label", "u1")])
_FIRST_CAPACITY = 1024


class GAUC(Metric):
    """Mean over groups of the exact AUC in each, weighted by the group's number of examples.

    Groups with labels of one class only have no AUC and are left out; nan if all are (Zhu et al.,
    "Optimized Cost per Click in Taobao Display Advertising", KDD 2017). `update` needs `groups`.

    Memory: it keeps every example, at 17 bytes and up to half more as room to grow; `compute` sorts
    them and takes about 85 bytes an example for as long as it runs.

    >>> gauc = GAUC()
    >>> scores, labels = np.array([0.2, 0.1, 0.9, 0.8, 0.5]), np.array([1, 0, 0, 1, 0])
    >>> gauc.update(scores, labels, groups=np.array([7, 7, 8, 8, 8]))
    >>> gauc.compute()  # AUC 1.0 of group 7 and 0.5 of group 8, as 2 to 3
    0.7
    """

    def __init__(self) -> None:
        self.reset()

    @property
    def settings(self) -> Settings:
        return {}

    def reset(self) -> None:
        self._samples = np.empty(_FIRST_CAPACITY, _SAMPLE)
        self._size = 0

    def measure(self, batch: Batch) -> NDArray[Any]:
        part = np.empty(batch.size, _SAMPLE)
        part["group"] = batch.groups
        part["score"] = batch.scores
        part["label"] = batch.positive
        return part

    def add(self, part: NDArray[Any]) -> None:
        size = self._size + len(part)
        if size > len(self._samples):
            grown = np.empty(max(size, len(self._samples) * 3 // 2), _SAMPLE)
            grown[: self._size] = self.contents()
            self._samples = grown
        self._samples[self._size : size] = part
        self._size = size

    def contents(self) -> NDArray[Any]:
        return self._samples[: self._size]

    def parse(self, payload: memoryview) -> NDArray[Any]:
        if len(payload) % _SAMPLE.itemsize != 0:
            raise ConfigError(
                f"metric state: {len(payload)} bytes of GAUC are not samples of {_SAMPLE.itemsize}"
            )
        samples = np.frombuffer(payload, _SAMPLE)
        scores = samples["score"]
        if not ((scores >= 0) & (scores <= 1) & (samples["label"] <= 1)).all():
            raise ConfigError("metric state: a GAUC sample has a score or label outside 0..1")
        return samples

    def compute(self) -> float:
        if self._size == 0:
            return float("nan")
        samples = self.contents()
        groups, scores = samples["group"].copy(), samples["score"].copy()
        order = np.lexsort((scores, groups))
        return _weighted_auc(groups[order], scores[order], samples["label"][order])


def _weighted_auc(
    groups: NDArray[np.int64], scores: NDArray[np.float64], labels: NDArray[np.uint8]
) -> float:
    """The mean AUC, of samples sorted by group and then by score; there is at least one."""
    new_group = np.concatenate(([True], groups[1:] != groups[:-1]))
    new_score = new_group.copy()
    new_score[1:] |= scores[1:] != scores[:-1]

    # Runs of samples with equal group and score; then the runs of each group.
    starts = np.flatnonzero(new_score)
    pos = np.add.reduceat(labels, starts, dtype=np.int64)
    neg = np.diff(starts, append=len(labels)) - pos
    first_runs = np.flatnonzero(new_group[starts])
    runs_per_group = np.diff(first_runs, append=len(starts))

    lower = np.cumsum(neg) - neg
    lower -= np.repeat(lower[first_runs], runs_per_group)
    # A pair in the right order counts 2, a tie 1.
    wins = np.add.reduceat(pos * (2 * lower + neg), first_runs)
    num_pos, num_neg = np.add.reduceat(pos, first_runs), np.add.reduceat(neg, first_runs)

    mixed = (num_pos > 0) & (num_neg > 0)
    if not mixed.any():
        return float("nan")
    num_pos, num_neg = num_pos[mixed], num_neg[mixed]
    weights = num_pos + num_neg
    return float((weights * (wins[mixed] / (2 * num_pos * num_neg))).sum() / weights.sum())
