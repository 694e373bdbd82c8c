"""Scores word vectors by similarity judgements and analogies.

Letters: V words, D width, Q questions.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

QUESTIONS_AT_ONCE = 500


def similarity_score(
    path: Path, place: Mapping[str, int], vectors: np.ndarray
) -> tuple[float, int]:
    """Return Spearman's correlation of cosines with the judgements in a file, and the number of
    pairs.

    Lines have word, word and judgement, separated by tabs; pairs with an unknown word are skipped.
    """
    unit = _unit(vectors)
    judged, found = [], []
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        one, other, judgement = line.split("\t")[:3]
        if one.lower() in place and other.lower() in place:
            judged.append(float(judgement))
            found.append(float(unit[place[one.lower()]] @ unit[place[other.lower()]]))
    return spearman(judged, found), len(judged)


def analogy_score(path: Path, place: Mapping[str, int], vectors: np.ndarray) -> tuple[float, int]:
    """Return the share of questions `a b c d` where the word nearest to b - a + c is d, and Q.

    The words of the question are excluded as answers; questions with an unknown word are skipped.
    """
    with gzip.open(path, "rt") as file:
        lines = [line.lower().split() for line in file if not line.startswith(":")]
    known = [[place[word] for word in line] for line in lines if all(w in place for w in line)]
    questions, unit, right = np.array(known).reshape(-1, 4), _unit(vectors), 0
    for begin in range(0, len(questions), QUESTIONS_AT_ONCE):
        some = questions[begin : begin + QUESTIONS_AT_ONCE]
        a, b, c, d = some.T
        cosines = (unit[b] - unit[a] + unit[c]) @ unit.T
        np.put_along_axis(cosines, some[:, :3], -np.inf, axis=1)
        right += int((cosines.argmax(axis=1) == d).sum())
    return right / max(1, len(questions)), len(questions)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks; equal values share theirs.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    return round(float(np.corrcoef(_ranks(one), _ranks(other))[0, 1]), 9)


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = ((ends - counts + 1 + ends) / 2.0)[inverse]
    return ranks


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return unit
