"""Words and contexts for the word2vec benchmark: 50,000 words following Zipf's law, 5 noise words.

Letters: S sentences, L words in each, B pairs of a word and a word next to it, K noise words.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

NUM_WORDS = 50_000
"""Ids start at 1: Paddle's InMemoryDataset drops a 0."""
DIM = 300
NUM_NOISE = 5
WINDOW = 3
"""Context words on each side; always all of them, so that pairs can be counted."""
SENTENCE_LENGTH = 20
PAIRS_PER_SENTENCE = sum(2 * (SENTENCE_LENGTH - distance) for distance in range(1, WINDOW + 1))
NUM_DISTINCT_SENTENCES = 2_000
LR = 1.0
"""For a mean over the batch: 0.01 per pair in a batch of 100."""

_NOISE_POWER = 0.75  # Mikolov et al. 2013

Pairs = tuple[torch.Tensor, torch.Tensor]
"""Words int64[B] and contexts int64[B, 1 + K], the true one first."""


def draw_sentences(count: int, seed: int) -> np.ndarray:
    """Words int64[S, L]; word 1 is the most frequent."""
    rng = np.random.default_rng(seed)
    return _draw(rng, _frequencies(), (count, SENTENCE_LENGTH))


def pairs_of(sentences: np.ndarray, seed: int) -> Pairs:
    """All pairs of the sentences, in random order."""
    rng = np.random.default_rng((1, seed))
    words, company = [], []
    for distance in range(1, WINDOW + 1):
        left, right = sentences[:, :-distance].reshape(-1), sentences[:, distance:].reshape(-1)
        words += [left, right]
        company += [right, left]
    order = rng.permutation(len(sentences) * PAIRS_PER_SENTENCE)
    contexts = _draw(rng, _frequencies() ** _NOISE_POWER, (len(order), 1 + NUM_NOISE))
    contexts[:, 0] = np.concatenate(company)[order]
    return torch.from_numpy(np.concatenate(words)[order]), torch.from_numpy(contexts)


class PairTurns:
    """The training data of one process by batch size, repeated endlessly."""

    def __init__(self, options: argparse.Namespace) -> None:
        sentences = draw_sentences(NUM_DISTINCT_SENTENCES, seed=options.rank)
        self._whole = pairs_of(sentences, seed=options.rank)

    def turn(self, batch: int, count: int) -> list[Pairs]:
        """Return `count` complete batches, starting over at the end."""
        split = zip(*(part.split(batch) for part in self._whole), strict=True)
        batches = list(split)[: len(self._whole[0]) // batch]
        return (batches * (count // len(batches) + 1))[:count]


def write_pair_files(folder: Path, num_files: int, lines_per_file: int) -> Sequence[Path]:
    """Write MultiSlot lines: the word, its context, the noise words."""
    num_sentences = -(-lines_per_file // PAIRS_PER_SENTENCE)
    paths = []
    for index in range(num_files):
        pairs = pairs_of(draw_sentences(num_sentences, seed=index), seed=index)
        words, contexts = (part[:lines_per_file].tolist() for part in pairs)
        lines = [
            f"1 {word} 1 {true} {NUM_NOISE} {' '.join(map(str, noise))}\n"
            for word, (true, *noise) in zip(words, contexts, strict=True)
        ]
        paths.append(folder / f"pairs-{index}")
        paths[-1].write_text("".join(lines))
    return paths


def _frequencies() -> np.ndarray:
    return 1.0 / np.arange(1, NUM_WORDS + 1)


def _draw(rng: np.random.Generator, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    shares = np.cumsum(weights)
    return 1 + np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
