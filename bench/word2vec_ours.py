"""Skip-gram with its rows in sparsefleet tables, trained by our Trainer.

Letters: B pairs, K noise words.
"""

from __future__ import annotations

import argparse
import atexit

import numpy as np
from torch import Tensor

from ctr_ours import WARM
from sparsefleet import optim
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import SkipGram
from word2vec_network import skip_gram_logits
from word2vec_pairs import DIM, NUM_WORDS, PairTurns


class FleetModel(SkipGram):
    """The same as `PlainModel`, with its rows in tables."""

    def __init__(self, lr: float, *, plain_operators: bool) -> None:
        super().__init__(DIM, optimizer=optim.SGD(lr=lr), biases=True)
        self.plain_operators = plain_operators

    def logits(self, words: Tensor, contexts: Tensor) -> Tensor:
        if not self.plain_operators:
            return super().logits(words, contexts)
        assert self.biases is not None
        return skip_gram_logits(self.words(words), self.contexts(contexts), self.biases(contexts))


class OursSide:
    """Our Trainer, as the environment says: in this process, or as one worker of a job."""

    def __init__(self, options: argparse.Namespace, *, plain_operators: bool = False) -> None:
        model = FleetModel(options.lr, plain_operators=plain_operators)
        self._trainer = Trainer(
            model,
            None,  # the model returns its loss
            optim.SGD(lr=options.lr),
            mode=WARM.get(options.mode, options.mode),
            threads=options.threads,
            config=TrainerConfig(quiet=True),
        )
        self._pairs = PairTurns(options)
        self._trainer.fit(self._pairs.turn(100, 2))  # connects
        if options.rank == 0:  # other sides have all rows from the start
            for table in ("words", "contexts", "biases"):
                self._trainer.distributed.store.pull(table, np.arange(1, NUM_WORDS + 1))
        atexit.register(self._trainer.close)

    def run(self, batch: int, num_batches: int) -> int:
        return self._trainer.fit(self._pairs.turn(batch, num_batches)).examples
