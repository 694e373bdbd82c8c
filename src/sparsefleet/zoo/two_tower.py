"""Two towers (DSSM, Huang et al. 2013): compare a user's and an item's vectors by dot product.

In shapes, B is the number of examples and D the width of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.zoo.inputs import FeatureRows, Inputs, Tables, require_kind, require_one_id
from sparsefleet.zoo.layers import mlp

__all__ = ["InBatchSoftmax", "Towers", "TwoTower"]


class Towers(NamedTuple):
    """The output of a retrieval model."""

    user: Tensor
    """The users' vectors, float32[B, D]."""
    item: Tensor
    """The items' vectors, float32[B, D]."""
    item_id: Tensor
    """The items' ids, int64[B]."""
    log_frequency: Tensor | None
    """The log of the item's frequency among the examples, float32[B], if known."""

    @property
    def score(self) -> Tensor:
        """The dot product of each example's user and item vectors, float32[B]."""
        return (self.user * self.item).sum(dim=1)


class TwoTower(nn.Module):
    """Separate layers over the user's and the item's features; both vectors have length 1.

    user, item: names of the features of each tower; item_id: the Categorical that identifies items.
    log_frequency: a Numeric with the log of the item's share of all examples, for the loss.

    >>> from sparsefleet.data.features import Categorical, Features
    >>> features = Features(Categorical("user"), Categorical("movie"))
    >>> model = TwoTower(features, user=["user"], item=["movie"], item_id="movie", hidden=(8,))
    >>> model(user=torch.tensor([7, 8]), movie=torch.tensor([1, 2])).score.shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        user: Sequence[str],
        item: Sequence[str],
        item_id: str,
        log_frequency: str | None = None,
        hidden: Sequence[int] = (64,),
        dim: int = 32,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_one_id(features, "item_id", item_id)
        if log_frequency is not None:
            require_kind(features, "log_frequency", log_frequency, kinds.Numeric)
        self.user_rows = FeatureRows(features.only(*user), tables)
        self.item_rows = FeatureRows(features.only(*item), tables)
        self.item_id, self.log_frequency = item_id, log_frequency
        self.user = mlp(self.user_rows.flat_width(), hidden, dim)
        self.item = mlp(self.item_rows.flat_width(), hidden, dim)

    def forward(self, **inputs: Any) -> Towers:
        """Return the vectors of users and items."""
        user = functional.normalize(self.user(self.user_rows.flat(inputs)), dim=1)
        item = functional.normalize(self.item(self.item_rows.flat(inputs)), dim=1)
        return towers(user, item, inputs, self.item_id, self.log_frequency)


def towers(
    user: Tensor, item: Tensor, inputs: Inputs, item_id: str, log_frequency: str | None
) -> Towers:
    """Return the vectors of users and items, with the item data that the loss needs."""
    frequency = None if log_frequency is None else inputs.get(log_frequency)
    return Towers(user, item, inputs[item_id], frequency)


class InBatchSoftmax:
    """Cross entropy of choosing each user's own item among the items of all examples in the batch.

    temperature: divides the scores; vectors of length 1 need a value far below 1.

    An item that occurs twice in a batch is not a negative of itself. If the output has frequencies,
    their logs are subtracted from the scores, so frequent items, which are often negatives, are not
    penalized (Yi et al. 2019). Labels are weights of the examples, float32[B].

    >>> user = torch.eye(2)
    >>> output = Towers(user, user, torch.tensor([5, 6]), None)
    >>> round(InBatchSoftmax(temperature=1.0)(output, torch.ones(2)).item(), 4)
    0.3133
    """

    def __init__(self, temperature: float = 0.05) -> None:
        if not temperature > 0:
            raise ConfigError(f"temperature must be a number > 0, got {temperature!r}")
        self.temperature = temperature

    def __call__(self, output: Towers, labels: Tensor) -> Tensor:
        size = len(output.item_id)
        for what, column in (("labels", labels), ("log_frequency", output.log_frequency)):
            if column is not None and column.shape != (size,):  # would be broadcast
                raise ShapeError(
                    f"InBatchSoftmax: {what} must have shape [{size}], one number per example, got "
                    f"{list(column.shape)}; name its column without a tuple, or squeeze it"
                )
        scores = output.user @ output.item.T / self.temperature
        if output.log_frequency is not None:
            scores = scores - output.log_frequency
        ids = output.item_id
        same = (ids.unsqueeze(0) == ids.unsqueeze(1)).fill_diagonal_(False)
        scores = scores.masked_fill(same, -1e9)
        chosen = functional.log_softmax(scores, dim=1).diagonal()
        return -(chosen * labels).sum() / labels.sum().clamp(min=1e-9)

    def predictions(self, output: Towers) -> Tensor:
        """Return the score of each user-item pair in 0..1, float32[B]."""
        return torch.sigmoid(output.score / self.temperature)
