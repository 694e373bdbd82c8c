"""One process of one side of bench/word2vec.py; Paddle's is bench/paddle_word2vec.py.

    python bench/word2vec_sides.py SIDE --rank 0 --processes 2 --threads 1 [--mode async]

bench/side_worker.py describes the requests and answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ctr_names import OURS_BY_TORCH
from side_worker import ProductsSide, answer_lines
from word2vec_network import PlainModel, Products
from word2vec_pairs import LR, PairTurns


class TorchSide:
    """The loop a user writes without sparsefleet."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._pairs = PairTurns(options)
        self._model = PlainModel()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.lr)

    def run(self, batch: int, num_batches: int) -> int:
        for words, contexts in self._pairs.turn(batch, num_batches):
            loss = self._model(words, contexts)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        return batch * num_batches


def ours_side(options: argparse.Namespace, *, plain_operators: bool = False) -> Any:
    """Imported only here, so that other sides do not pay for sparsefleet."""
    from word2vec_ours import OursSide

    return OursSide(options, plain_operators=plain_operators)


def gensim_side(options: argparse.Namespace) -> Any:
    from word2vec_gensim import GensimSide

    return GensimSide(options)


SIDES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "products": partial(ProductsSide, Products),
    "torch": TorchSide,
    "ours": ours_side,
    OURS_BY_TORCH: partial(ours_side, plain_operators=True),
    "gensim": gensim_side,
}


if __name__ == "__main__":
    answer_lines(__doc__ or "", SIDES, LR)
