"""Metrics of how well scores rank the examples of a group, such as items shown to a user."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require_int
from sparsefleet.metrics.auc import GAUC
from sparsefleet.metrics.metric import Batch, Settings

__all__ = ["NDCG", "RecallAtK"]


class _Ranking(GAUC):
    """A score for each group's `k` highest predictions, averaged over groups with a positive label.

    Scores may be any finite numbers. Among equal scores, label 0 ranks first, so ties never help
    and the result does not depend on the order of the examples. Uses as much memory as `GAUC`.
    """

    def __init__(self, k: int = 10) -> None:
        self.k = k
        require_int(self, "k", 1, 2**31)
        super().__init__()

    @property
    def settings(self) -> Settings:
        return {"k": self.k}

    def measure(self, batch: Batch) -> NDArray[Any]:
        return self.samples_of(batch, batch.values)

    def parse(self, payload: memoryview) -> NDArray[Any]:
        samples = self.parse_samples(payload)
        if not (np.isfinite(samples["score"]) & (samples["label"] <= 1)).all():
            raise ConfigError(
                f"metric state: a sample of {self!r} must have a finite score and a label of 0 or "
                "1; the bytes are damaged"
            )
        return samples

    def compute(self) -> float:
        samples = self.contents()
        order = np.lexsort((samples["label"], -samples["score"], samples["group"]))
        groups, labels = samples["group"][order], samples["label"][order].astype(np.float64)
        if not len(groups):
            return float("nan")
        starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
        sizes = np.diff(starts, append=len(groups))
        ranks = np.arange(len(groups)) - np.repeat(starts, sizes)  # from 0, within each group
        positives = np.add.reduceat(labels, starts)
        found = np.add.reduceat(np.where(ranks < self.k, labels * self._gain(ranks), 0.0), starts)
        counted = positives > 0
        if not counted.any():
            return float("nan")
        return float((found[counted] / self._best(positives[counted])).mean())

    @abstractmethod
    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weight of a positive at each of these ranks, counted from 0."""

    @abstractmethod
    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of a perfect ranking, given the number of positives per group."""


class RecallAtK(_Ranking):
    """The share of a group's positives among its `k` highest scores, averaged over groups.

    `update` needs `groups`; groups without a positive label are skipped, and the result is nan if
    no group is left.

    >>> recall = RecallAtK(k=1)
    >>> scores, labels = np.array([2.5, 1.0, 0.3, 0.4]), np.array([1, 1, 1, 0])
    >>> recall.update(scores, labels, groups=np.array([7, 7, 8, 8]))
    >>> recall.compute()  # one of two in group 7, none in group 8
    0.25
    """

    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.ones(len(ranks))

    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        return positives


class NDCG(_Ranking):
    """Normalized discounted cumulative gain of the `k` highest scores, averaged over groups.

    A positive at rank r, from 1, contributes 1 / log2(r + 1) (Jarvelin and Kekalainen 2002).
    `update` needs `groups`; groups without a positive label are skipped, and the result is nan if
    no group is left.

    >>> ndcg = NDCG(k=2)
    >>> ndcg.update(np.array([0.9, 0.8, 0.1]), np.array([0, 1, 0]), groups=np.array([7, 7, 7]))
    >>> round(ndcg.compute(), 4)
    0.6309
    """

    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(1.0 / np.log2(ranks + 2.0))

    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        most = int(min(self.k, positives.max()))
        ideal = np.cumsum(self._gain(np.arange(most)))
        return np.asarray(ideal[np.minimum(positives, most).astype(np.int64) - 1])
