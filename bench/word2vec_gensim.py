"""Skip-gram in gensim. Its windows are never shortened, so that its pairs can be counted."""

from __future__ import annotations

import argparse

import numpy as np
from gensim.models import Word2Vec

from word2vec_pairs import (
    DIM,
    NUM_DISTINCT_SENTENCES,
    NUM_NOISE,
    NUM_WORDS,
    PAIRS_PER_SENTENCE,
    WINDOW,
    draw_sentences,
)


class GensimSide:
    """Trains on sentences; a batch is the number of sentences that have its pairs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._model = Word2Vec(
            sg=1,
            negative=NUM_NOISE,
            vector_size=DIM,
            window=WINDOW,
            shrink_windows=False,
            sample=0.0,
            min_count=1,
            workers=options.threads,
        )
        counts = np.ceil(NUM_WORDS / np.arange(1, NUM_WORDS + 1)).astype(int)
        self._model.build_vocab_from_freq(
            {str(word): count for word, count in enumerate(counts.tolist(), start=1)}
        )
        drawn = draw_sentences(NUM_DISTINCT_SENTENCES, seed=0).tolist()
        self._sentences = [[str(word) for word in sentence] for sentence in drawn]

    def run(self, batch: int, num_batches: int) -> int:
        wanted = -(-batch * num_batches // PAIRS_PER_SENTENCE)
        repeated = self._sentences * (wanted // len(self._sentences) + 1)
        self._model.train(repeated[:wanted], total_examples=wanted, epochs=1)
        return wanted * PAIRS_PER_SENTENCE
