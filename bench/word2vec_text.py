"""Text preparation for word2vec: downsampling of frequent words, windows of random size, noise.

The rules are those of Mikolov et al. 2013, which gensim follows too.

Letters: V words in the vocabulary, T words in the text, B pairs, K noise words.
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
"""Words with a larger share of the text are downsampled."""

_NOISE_POWER = 0.75
_NOISE_PLACES = 1 << 20
_SENTENCES_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text without its rare words."""

    vocabulary: list[str]
    """V words, most frequent first."""
    counts: np.ndarray
    """int64[V]"""
    text: np.ndarray
    """int32[T], indices into the vocabulary"""

    def save(self, path: Path) -> None:
        np.savez(path, vocabulary=self.vocabulary, counts=self.counts, text=self.text)

    def sentences(self) -> list[np.ndarray]:
        """Return sentences of equal length, except the last."""
        return np.split(self.text, range(SENTENCE_LENGTH, len(self.text), SENTENCE_LENGTH))


def read_corpus(path: Path, num_bytes: int) -> Corpus:
    """Read the first bytes of a gzip file of words separated by blanks."""
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
    """Return the expected pairs of one pass: a center word and each word in its window."""
    return round((_kept_shares(corpus) * corpus.counts).sum() * (1 + WINDOW))


def draw_batches(
    corpus: Corpus, batch: int, rank: int, processes: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield words int64[B] and contexts int64[B, 1 + K] of this process's share, the true one
    first.
    """
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
    """Return words with the frequency at which they are drawn: int64[places]."""
    shares = np.cumsum(corpus.counts.astype(np.float64) ** _NOISE_POWER)
    points = (np.arange(_NOISE_PLACES) + 0.5) / _NOISE_PLACES
    return np.searchsorted(shares, points * shares[-1])


def _pairs_of(sentence: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return each word of the sentence with those in its window: int64[B] twice."""
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
