from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.nn import apply_gradients, bind
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore
from sparsefleet.zoo import SkipGram

WORDS = torch.tensor([3, 1, 3, 0])
CONTEXTS = torch.tensor([[1, 2, 2], [3, 0, 4], [4, 3, 1], [0, 0, 2]])


@pytest.mark.parametrize("biases", [False, True])
def test_loss_and_gradients_equal_those_of_plain_torch(biases: bool) -> None:
    model, store = SkipGram(6, biases=biases), LocalStore()
    bind(model, store, SGD(lr=1.0))
    names = ("words", "contexts", "biases")[: 2 + biases]
    ids = np.arange(5)
    model(WORDS, CONTEXTS).backward()
    apply_gradients(model)  # creates the rows, and makes them differ from their first values
    before = {name: torch.from_numpy(store.pull(name, ids).copy()) for name in names}
    dense = {name: rows.clone().requires_grad_() for name, rows in before.items()}

    wanted = torch.zeros(())
    for word, contexts in zip(WORDS, CONTEXTS, strict=True):
        for place, context in enumerate(contexts):
            logit = dense["words"][word] @ dense["contexts"][context]
            if biases:
                logit = logit + dense["biases"][context, 0]
            wanted = wanted - nn.functional.logsigmoid(logit if place == 0 else -logit)
    wanted = wanted / len(WORDS)
    wanted.backward()
    found = model(WORDS, CONTEXTS)
    found.backward()
    apply_gradients(model)

    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for name in names:
        moved = before[name] - torch.from_numpy(store.pull(name, ids))
        gradient = dense[name].grad
        assert gradient is not None
        used = gradient.abs().sum(1) > 0
        torch.testing.assert_close(moved[used], gradient[used], rtol=1e-5, atol=1e-6)
