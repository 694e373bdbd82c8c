"""Skip-gram with its rows in sparsefleet tables, trained by our Trainer.

Letters: B pairs, K noise words.
"""

from __future__ import annotations

import argparse
import atexit

import numpy as np
from torch import Tensor, nn

from ctr_ours import WARM
from sparsefleet import optim
from sparsefleet.nn import SparseEmbedding, embedding_dots
from sparsefleet.store import Constant, Uniform
from sparsefleet.train import Trainer, TrainerConfig
from word2vec_network import loss_of_logits, skip_gram_loss
from word2vec_pairs import DIM, NUM_WORDS, PairTurns


class FleetModel(nn.Module):
    """The same as `PlainModel`, with its rows in tables."""

    def __init__(self, lr: float, *, plain_operators: bool) -> None:
        super().__init__()
        self.plain_operators = plain_operators
        rule, spread = optim.SGD(lr=lr), Uniform(-0.5 / DIM, 0.5 / DIM)
        self.words = SparseEmbedding("words", DIM, optimizer=rule, initializer=spread)
        self.contexts = SparseEmbedding("contexts", DIM, optimizer=rule, initializer=Constant(0.0))
        self.biases = SparseEmbedding("biases", 1, optimizer=rule, initializer=Constant(0.0))

    def forward(self, words: Tensor, contexts: Tensor) -> Tensor:
        if not self.plain_operators:
            products = embedding_dots(self.words, words, self.contexts, contexts)
            return loss_of_logits(products + self.biases(contexts).squeeze(2))
        return skip_gram_loss(self.words(words), self.contexts(contexts), self.biases(contexts))


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
