"""YouTubeDNN (Covington et al. 2016, RecSys), candidate generation: predicts which item a user
watches next.

In shapes, B is the number of examples and D the width of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.errors import ConfigError
from sparsefleet.zoo.inputs import FeatureRows, Tables, require_kind, require_one_id
from sparsefleet.zoo.layers import mlp
from sparsefleet.zoo.two_tower import Towers, towers

__all__ = ["YouTubeDNN"]


class YouTubeDNN(nn.Module):
    """Layers over the mean of the history and the user's features; an item is a row of a table.

    user: names of the user's features, including the history.
    item: the Categorical that is watched next. Its rows, of width D, are in the table with its name
        and ".output" appended; as part of a history, an item has a different row.
    log_frequency: a Numeric with the log of the item's share of all examples, for the loss.

    Train it with `InBatchSoftmax(temperature=1.0)`.

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features, Sequence
    >>> features = Features(Sequence("seen", table="movie"), Categorical("movie"))
    >>> model = YouTubeDNN(features, user=["seen"], item="movie", hidden=(8,), dim=4)
    >>> seen = (torch.tensor([3, 4, 5]), torch.tensor([0, 2]))
    >>> model(seen=seen, movie=torch.tensor([1, 2])).item.shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        features: Features,
        *,
        user: Sequence[str],
        item: str,
        log_frequency: str | None = None,
        hidden: Sequence[int] = (128, 64),
        dim: int = 32,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        if item in user:
            raise ConfigError(
                f"feature '{item}' is the prediction target, so it cannot be an input: "
                f"remove '{item}' from user="
            )
        require_one_id(features, "item", item)
        if log_frequency is not None:
            require_kind(features, "log_frequency", log_frequency, kinds.Numeric)
        self.item, self.log_frequency = item, log_frequency
        self.user_rows = FeatureRows(features.only(*user), tables)
        self.item_rows = FeatureRows(features.only(item), tables, suffix=".output", dim=dim)
        self.user = mlp(self.user_rows.flat_width(), hidden, dim)

    def forward(self, **inputs: Any) -> Towers:
        """Return the vectors of users and items."""
        user: Tensor = self.user(self.user_rows.flat(inputs))
        item = self.item_rows.one(self.item, inputs)
        return towers(user, item, inputs, self.item, self.log_frequency)
