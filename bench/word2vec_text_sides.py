"""One process that learns word vectors from a text, for bench/word2vec_quality.py: ours or gensim.

    python bench/word2vec_text_sides.py SIDE --data CORPUS.npz --rank 0 --processes 2 [--mode geo]

bench/side_worker.py describes the requests and answers; `run BATCH EXAMPLES` is one pass over its
share of the text, whatever EXAMPLES says, and `vectors FILE` writes the vectors of all words.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from side_worker import answer_lines
from word2vec_text import (
    MIN_COUNT,
    NUM_NOISE,
    THINNING,
    WINDOW,
    Corpus,
    draw_batches,
    expected_pairs,
    load_corpus,
)

DIM = 100
RATE, LAST_RATE = 0.025, 0.0001
"""The rate per pair, at the beginning and at the end: gensim's."""


class OursSide:
    """Our Trainer, as the environment says: in this process, or as one worker of a job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._corpus = load_corpus(options.data)
        self._trainer: Any = None

    def run(self, batch: int, num_batches: int) -> int:
        from sparsefleet import fleet

        del num_batches  # all of the text
        self._trainer = self._make_trainer(batch)
        place = (self._options.rank, self._options.processes)
        trained: int = self._trainer.fit(draw_batches(self._corpus, batch, *place)).examples
        fleet.settle()
        return trained

    def vectors(self, path: Path) -> int:
        store = self._trainer.distributed.store
        np.save(path, store.pull("words", np.arange(len(self._corpus.vocabulary))))
        self._trainer.close()
        return DIM

    def _make_trainer(self, batch: int) -> Any:
        from sparsefleet import fleet, optim
        from sparsefleet.train import Trainer, TrainerConfig
        from sparsefleet.zoo import SkipGram

        fleet.init()
        steps = expected_pairs(self._corpus) / batch
        if self._options.mode == "geo":  # counts a worker's steps; in async, those of all workers
            steps /= self._options.processes
        return Trainer(
            SkipGram(DIM),
            None,
            optim.SGD(lr=batch * RATE),
            mode=self._options.mode,
            threads=self._options.threads,
            schedule=lambda step: max(1.0 - step / steps, LAST_RATE / RATE),
            config=TrainerConfig(quiet=True),
        )


class GensimSide:
    """Run one pass with the requested number of threads."""

    def __init__(self, options: argparse.Namespace) -> None:
        from gensim.models import Word2Vec  # ours does not need it

        self._corpus: Corpus = load_corpus(options.data)
        words = self._corpus.vocabulary
        self._sentences = [[words[i] for i in part] for part in self._corpus.sentences()]
        self._model = Word2Vec(
            sg=1,
            negative=NUM_NOISE,
            vector_size=DIM,
            window=WINDOW,
            sample=THINNING,
            min_count=MIN_COUNT,
            alpha=RATE,
            min_alpha=LAST_RATE,
            workers=options.threads,
        )
        self._model.build_vocab(self._sentences)

    def run(self, batch: int, num_batches: int) -> int:
        del batch, num_batches  # gensim has no such option, and takes the whole text
        self._model.train(self._sentences, total_examples=len(self._sentences), epochs=1)
        return expected_pairs(self._corpus)

    def vectors(self, path: Path) -> int:
        np.save(path, np.stack([self._model.wv[word] for word in self._corpus.vocabulary]))
        return DIM


if __name__ == "__main__":
    answer_lines(__doc__ or "", {"ours": OursSide, "gensim": GensimSide}, RATE)
