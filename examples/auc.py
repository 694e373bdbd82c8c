"""The area under the ROC curve, exactly: by ranks, ties counted half."""

from __future__ import annotations

import numpy as np


def auc(clicks: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a clicked example scores above one not clicked; nan with only one kind.

    >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    clicked = clicks > 0.5
    num_clicked = int(clicked.sum())
    num_others = len(clicks) - num_clicked
    if num_clicked == 0 or num_others == 0:
        return float("nan")
    _, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2.0
    rank_sum = mean_ranks[place][clicked].sum()
    return float((rank_sum - num_clicked * (num_clicked + 1) / 2.0) / (num_clicked * num_others))
