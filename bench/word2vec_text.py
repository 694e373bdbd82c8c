"""Text as word2vec learns from it: frequent words thinned out, windows of random size, noise.

The rules are those of Mikolov et al. 2013, which gensim follows too.

Letters: V words of the vocabulary, T words of the text, B pairs, K noise words.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

MIN_COUNT = 5
SENTENCE_LENGTH = 1000
WINDOW = 5
NUM_NOISE = 5
THINNING = 1e-3
"""Words that are a greater share of the text than this are partly left out."""

_NOISE_POWER = 0.75
_NOISE_PLACES = 1 << 20
_SENTENCES_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text whose rare words are left out."""

    vocabulary: list[str]
    """V words, the most frequent first."""
    counts: np.ndarray
    """int64[V]"""
    text: np.ndarray
    """int32[T], places in the vocabulary"""

    def save(self, path: Path) -> None:
        np.savez(path, vocabulary=self.vocabulary, counts=self.counts, text=self.text)

    def sentences(self) -> list[np.ndarray]:
        """Of equal length, but the last."""
        return np.split(self.text, range(SENTENCE_LENGTH, len(self.text), SENTENCE_LENGTH))


def read_corpus(path: Path, num_bytes: int) -> Corpus:
    """Of the first bytes of a gzip file of words between blanks."""
    with gzip.open(path, "rt") as file:
        words = file.read(num_bytes).split()
    common = [(word, n) for word, n in Counter(words).most_common() if n >= MIN_COUNT]
    place = {word: index for index, (word, _) in enumerate(common)}
    text = np.array([place[word] for word in words if word in place], np.int32)
    return Corpus([word for word, _ in common], np.array([n for _, n in common]), text)


def load_corpus(path: Path) -> Corpus:
    with np.load(path) as arrays:
        return Corpus(arrays["vocabulary"].tolist(), arrays["counts"], arrays["text"])


def expected_pairs(corpus: Corpus) -> int:
    """Of one pass over the text; each is about a middle word with its window to both sides."""
    return round((_kept_shares(corpus) * corpus.counts).sum() * (1 + WINDOW))


def draw_batches(
    corpus: Corpus, batch: int, rank: int, processes: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Words int64[B] and contexts int64[B, 1 + K] of this process's share, the true one first."""
    rng = np.random.default_rng((2, rank))
    kept_shares = _kept_shares(corpus)
    noise_places = _noise_places(corpus)
    sentences = corpus.sentences()[rank::processes]
    for begin in range(0, len(sentences), _SENTENCES_AT_ONCE):
        pairs = [
            _pairs_of(sentence[rng.random(len(sentence)) < kept_shares[sentence]], rng)
            for sentence in sentences[begin : begin + _SENTENCES_AT_ONCE]
        ]
        words, company = (np.concatenate(part) for part in zip(*pairs, strict=True))
        order = rng.permutation(len(words))
        drawn = noise_places[rng.integers(0, _NOISE_PLACES, (len(words), 1 + NUM_NOISE))]
        drawn[:, 0] = company[order]
        all_words, contexts = torch.from_numpy(words[order]), torch.from_numpy(drawn)
        yield from zip(all_words.split(batch), contexts.split(batch), strict=True)


def _kept_shares(corpus: Corpus) -> np.ndarray:
    ratios = THINNING * corpus.counts.sum() / corpus.counts
    shares: np.ndarray = np.minimum(1.0, np.sqrt(ratios) + ratios)
    return shares


def _noise_places(corpus: Corpus) -> np.ndarray:
    """Words as often as they are to be drawn: int64[places]."""
    shares = np.cumsum(corpus.counts.astype(np.float64) ** _NOISE_POWER)
    points = (np.arange(_NOISE_PLACES) + 0.5) / _NOISE_PLACES
    return np.searchsorted(shares, points * shares[-1])


def _pairs_of(sentence: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each word of the sentence with those in its window: int64[B] twice."""
    sizes = rng.integers(1, WINDOW + 1, len(sentence))
    words, company = [], []
    for distance in range(1, WINDOW + 1):
        for middle, beside in (
            (slice(None, -distance), slice(distance, None)),
            (slice(distance, None), slice(None, -distance)),
        ):
            is_in = sizes[middle] >= distance
            words.append(sentence[middle][is_in])
            company.append(sentence[beside][is_in])
    return np.concatenate(words).astype(np.int64), np.concatenate(company).astype(np.int64)
