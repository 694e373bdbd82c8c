"""The inputs of a model as tensors: rows of its features' tables, and numbers.

In shapes, B is the number of examples, F the number of embedded fields, D the row width, M the
number of numeric inputs, and L the length of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding
from sparsefleet.nn.lookup import check_offsets
from sparsefleet.nn.step_rows import is_traced
from sparsefleet.store import (
    AdmitAlways,
    AdmitByCount,
    AdmitByProbability,
    Evict,
    Initializer,
    RowDtype,
)
from sparsefleet.store.optimizers import Optimizer, check_optimizer
from sparsefleet.store.store import Unknown
from sparsefleet.zoo.ragged import Padded, pad, pool

__all__ = ["FeatureRows", "Inputs", "Tables"]

Inputs = Mapping[str, Any]
"""A batch by feature name: tensors, or pairs (values, offsets)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Settings for all tables of a model."""

    optimizer: Optimizer | None = None
    """Updates the rows; None uses the trainer's optimizer."""

    initializer: Initializer | None = None
    """The initial values of rows; None means a normal distribution. Weights of width 1 start at 0.
    """

    admission: AdmitAlways | AdmitByCount | AdmitByProbability = field(default_factory=AdmitAlways)
    """Which ids get a row."""

    eviction: Evict = field(default_factory=Evict)
    """Which rows `Trainer.shrink` removes."""

    seed: int = 0
    """The seed for initial values."""

    unknown: Unknown = "zeros"
    """How ids without a row read in prediction: as zeros, or as their initial values ("initial").
    """

    row_dtype: RowDtype = "float32"
    """How tables store rows. With "bf16" and "int8", about 1.8 and 3 times as many rows fit."""

    def __post_init__(self) -> None:
        if self.optimizer is not None:
            check_optimizer(self.optimizer, "Tables.optimizer")


class FeatureRows(nn.Module):
    """Looks up the tables of a feature description; each table is one module.

    features: the features to look up. The methods take names of features; None means all of their
        kind.
    tables: settings for all tables.
    suffix, dim, initializer: for a second set of tables with the same ids. `suffix` is appended to
        the table names; `dim` and `initializer` replace the features' widths and the tables'
        initial values.

    >>> from sparsefleet.data.features import Categorical, Features, Numeric
    >>> features = Features(Numeric("age"), Categorical("city", dim=4))
    >>> rows = FeatureRows(features)
    >>> batch = {"age": torch.tensor([31.0, 50.0]), "city": torch.tensor([7, 8])}
    >>> rows.fields(batch).shape, rows.numbers(batch).shape
    (torch.Size([2, 1, 4]), torch.Size([2, 1]))
    """

    def __init__(
        self,
        features: Features,
        tables: Tables | None = None,
        *,
        suffix: str = "",
        dim: int | None = None,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__()
        tables = tables or Tables()
        self.features = features
        self._dim = dim
        self._key_of: dict[str, str] = {}
        self.tables = nn.ModuleDict()
        for feature in features.of(kinds.IdFeature):
            name = feature.table_name + suffix
            key = f"of_{name.replace('.', '_')}"  # a ModuleDict rejects names such as "items"
            while key in self.tables and self.tables[key].name != name:
                key += "_"  # the tables "a.b" and "a_b" have the same key
            self._key_of[feature.name] = key
            if key not in self.tables:
                self.tables[key] = SparseEmbedding(
                    name,
                    dim or feature.dim,
                    optimizer=tables.optimizer,
                    initializer=initializer or tables.initializer,
                    admission=tables.admission,
                    eviction=tables.eviction,
                    seed=tables.seed,
                    unknown=tables.unknown,
                    row_dtype=tables.row_dtype,
                )

    # -- sizes ----------------------------------------------------------------------------------

    def num_fields(self, names: Sequence[str] | None = None) -> int:
        """Return F, the number of fields: one per id feature, or per column if it has several."""
        return sum(getattr(feature, "width", 1) for feature in self._ids(names))

    @property
    def num_numbers(self) -> int:
        """Return M, the number of numeric inputs."""
        return sum(feature.width for feature in self.features.of(kinds.Numeric))

    def flat_width(self, names: Sequence[str] | None = None) -> int:
        """Return the width of the tensor that `flat` returns."""
        return self.num_numbers + sum(
            getattr(feature, "width", 1) * (self._dim or feature.dim)
            for feature in self._ids(names)
        )

    def common_dim(self, names: Sequence[str] | None = None) -> int:
        """Return D, the same for all id features. Raises ConfigError if they differ."""
        found = {self._dim or feature.dim: feature.name for feature in self._ids(names)}
        if len(found) != 1:
            shown = ", ".join(f"'{name}' with dim {dim}" for dim, name in found.items()) or "none"
            raise ConfigError(f"this model needs id features with the same dim, found {shown}")
        return next(iter(found))

    # -- tensors --------------------------------------------------------------------------------

    def fields(self, inputs: Inputs, names: Sequence[str] | None = None) -> Tensor:
        """Return one row per field, float32[B, F, D]; features with several ids are pooled."""
        parts = [self._field(feature, inputs) for feature in self._ids(names)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def flat(self, inputs: Inputs, names: Sequence[str] | None = None) -> Tensor:
        """Concatenate the rows of all fields and the numbers: float32[B, flat_width]."""
        parts = [self._field(feature, inputs).flatten(1) for feature in self._ids(names)]
        if self.num_numbers:
            parts.append(self.numbers(inputs))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def beside_numbers(self, fields: Tensor, inputs: Inputs) -> Tensor:
        """Return the fields, float32[B, F, D], and the fields and numbers concatenated, like
        `flat`.
        """
        if not self.num_numbers:
            return fields.flatten(1)
        return torch.cat([fields.flatten(1), self.numbers(inputs)], dim=1)

    def numbers(self, inputs: Inputs) -> Tensor:
        """Return the numbers of all numeric features, transformed: float32[B, M]."""
        parts = [
            _scaled(feature, _input(inputs, feature.name))
            for feature in self.features.of(kinds.Numeric)
        ]
        if not parts:
            raise ConfigError("this model needs at least one Numeric feature, found none")
        return torch.cat(parts, dim=1)

    def one(self, name: str, inputs: Inputs) -> Tensor:
        """Return the rows of one feature: float32[B, D], or [B, W, D] for W columns."""
        feature = self.features[name]
        rows = self._field(feature, inputs)
        return rows if isinstance(getattr(feature, "columns", None), tuple) else rows.squeeze(1)

    def sequence(self, name: str, inputs: Inputs) -> Padded:
        """Return a sequence as rows float32[B, L, D] and a mask bool[B, L]."""
        feature = self.features[name]
        if not isinstance(feature, kinds.Sequence):
            raise ConfigError(f"feature '{name}' must be a Sequence, got {feature!r:.100}")
        values, offsets = _ragged(inputs, feature)
        return pad(self._table(feature)(values), offsets, feature.max_length)

    def sequence_like(self, name: str, inputs: Inputs, mask: Tensor) -> Tensor:
        """Return the rows of a sequence whose items belong to those of another one, [B, L, D].

        mask: the mask of the other one. Raises ShapeError unless both have the same lengths.
        """
        rows, own = self.sequence(name, inputs)
        if not _is_recorded() and not torch.equal(own, mask):
            at = int((own != mask).any(dim=1).nonzero()[0])
            raise ShapeError(
                f"input '{name}' has {int(own[at].sum())} items in example {at}, but the history "
                f"has {int(mask[at].sum())}; give each item of the history one"
            )
        return rows

    def _ids(self, names: Sequence[str] | None) -> list[kinds.IdFeature]:
        found = self.features.of(kinds.IdFeature)
        return found if names is None else [one for one in found if one.name in names]

    def _table(self, feature: kinds.Feature) -> nn.Module:
        return self.tables[self._key_of[feature.name]]

    def _field(self, feature: kinds.Feature, inputs: Inputs) -> Tensor:
        """Return the rows of one feature as fields: float32[B, W, D], with W = 1 for most."""
        if isinstance(feature, kinds.Categorical):
            rows: Tensor = self._table(feature)(_input(inputs, feature.name))
            return rows if rows.dim() == 3 else rows.unsqueeze(1)
        assert isinstance(feature, (kinds.MultiValued, kinds.Sequence))
        values, offsets = _ragged(inputs, feature)
        pooling = feature.pooling if isinstance(feature, kinds.MultiValued) else "mean"
        rows = self._table(feature)(values)
        return pool(rows, offsets, feature.max_length, pooling).unsqueeze(1)


def require_kind(features: Features, argument: str, name: str, kind: type[kinds.Feature]) -> None:
    """Raise ConfigError unless `name`, passed to a model as `argument`, is of this kind."""
    feature = features[name]
    if not isinstance(feature, kind):
        raise ConfigError(
            f"{argument}='{name}' must be a {kind.__name__}, but this feature is a "
            f"{type(feature).__name__}"
        )


def require_one_id(features: Features, argument: str, name: str) -> None:
    """Raise ConfigError unless the feature is a Categorical of one column."""
    require_kind(features, argument, name, kinds.Categorical)
    columns = getattr(features[name], "columns", None)
    if isinstance(columns, tuple):
        raise ConfigError(
            f"{argument}='{name}' must have one id per example, but this feature has the columns "
            f"{columns}; use a Categorical with one column"
        )


def require_like(features: Features, argument: str, name: str, history: str) -> None:
    """Raise ConfigError unless the feature is a Sequence with the table and length of `history`."""
    require_kind(features, argument, name, kinds.Sequence)
    one, other = features[name], features[history]
    assert isinstance(one, kinds.Sequence)
    assert isinstance(other, kinds.Sequence)
    if (one.table_name, one.max_length) != (other.table_name, other.max_length):
        raise ConfigError(
            f"{argument}='{name}' has the table '{one.table_name}' and max_length "
            f"{one.max_length}, but history='{history}' has '{other.table_name}' and "
            f"{other.max_length}; use the same values for both"
        )


def _scaled(feature: kinds.Numeric, values: Tensor) -> Tensor:
    """Return the transformed and scaled numbers, float32[B, W]."""
    if feature.transform == "log":
        values = values.sign() * values.abs().log1p()
    if (feature.mean, feature.std) != (0.0, 1.0):
        values = (values - feature.mean) / feature.std
    return values.view(values.shape[0], feature.width)


def _ragged(inputs: Inputs, feature: kinds.IdFeature) -> tuple[Tensor, Tensor]:
    """Return the ids of all examples and where each example starts, checked."""
    found = _input(inputs, feature.name)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ShapeError(
            f"input '{feature.name}' must be a pair (values int64[N], offsets int64[B]), got a "
            f"{type(found).__name__}"
        )
    values, offsets = found
    if not _is_recorded():
        check_offsets(feature.table_name, offsets, len(values), closed=False)
    return values, offsets


def _is_recorded() -> bool:
    """Return whether the model is recorded as a graph, where tensors may have no values."""
    return is_traced() or torch.compiler.is_compiling()


def _input(inputs: Inputs, name: str) -> Any:
    try:
        return inputs[name]
    except KeyError:
        raise ConfigError(
            f"the batch has no input '{name}'; it has {', '.join(inputs) or 'none'}"
        ) from None
