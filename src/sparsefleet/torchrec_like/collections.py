"""TorchRec's collections of embedding tables, on growing tables.

In shapes, B is the number of examples, K the number of features, N the number of ids, and D the row
width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding, import_embedding, import_embeddings
from sparsefleet.nn.bag_sums import Bags, sum_rows_by_bag
from sparsefleet.nn.lookup import check_lengths, values_by_key
from sparsefleet.nn.sparse_embedding_bag import BagsOfLengths, traced_bags
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.nn.step_rows import is_traced
from sparsefleet.store import RowDtype, Uniform
from sparsefleet.store.optimizers import Optimizer
from sparsefleet.torchrec_like.jagged import JaggedTensor, KeyedTensor

__all__ = [
    "DataType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "PoolingType",
    "load_torchrec_state_dict",
    "torchrec_state_dict",
]

_READ_AT_ONCE = 100_000  # rows
_ROW_DTYPES: dict[str, RowDtype] = {"FP32": "float32", "BF16": "bf16", "INT8": "int8"}


class PoolingType(Enum):
    """How the rows of a bag are pooled."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class DataType(Enum):
    """The type in which a table stores its rows; FP16 is not supported."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"


@dataclass
class EmbeddingConfig:
    """A table with TorchRec's fields; fields for its GPU kernels are accepted and ignored."""

    num_embeddings: int
    """Sets the range of initial values, as in TorchRec. Any id is valid, since the table grows."""
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    num_embeddings_post_pruning: int | None = None
    init_fn: Callable[[Tensor], Tensor | None] | None = None
    """Fills a tensor [num_embeddings, D] in place; larger ids get uniform initial values."""
    need_pos: bool = False
    input_dim: int | None = None
    total_num_buckets: int | None = None
    use_virtual_table: bool = False
    virtual_table_eviction_policy: Any = None
    enable_embedding_update: bool = False
    stash_weights: bool = False

    def get_weight_init_max(self) -> float:
        """Return the upper bound of the initial values."""
        own = self.weight_init_max
        return math.sqrt(1 / self.num_embeddings) if own is None else own

    def get_weight_init_min(self) -> float:
        """Return the lower bound of the initial values."""
        own = self.weight_init_min
        return -math.sqrt(1 / self.num_embeddings) if own is None else own

    def num_features(self) -> int:
        return len(self.feature_names)


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """A table whose rows are pooled, with TorchRec's fields."""

    pooling: PoolingType = PoolingType.SUM


class _Collection(nn.Module):
    """Tables by name, and the features that look up each table."""

    def __init__(self, tables: Sequence[Any], optimizer: Optimizer | None) -> None:
        super().__init__()
        if not isinstance(tables, Sequence):
            raise ConfigError(
                f"tables must be a list of configs, got one {type(tables).__name__}: pass [config]"
            )
        if not tables:
            raise ConfigError("a collection needs at least one table, got none")
        self._configs = list(tables)
        self._device = torch.device("cpu")
        names = [config.name for config in tables]
        features = [feature for config in tables for feature in config.feature_names]
        self._tables: dict[str, SparseEmbedding] = {}
        self._users: list[tuple[str, str, Any]] = []  # output key, feature, config
        for config in tables:
            _check(config, names)
            self._tables[config.name] = _table(config, optimizer)
            for feature in config.feature_names:
                several = features.count(feature) > 1
                key = f"{feature}@{config.name}" if several else feature
                self._users.append((key, feature, config))

    @property
    def device(self) -> torch.device:
        """Return the CPU, where table rows live."""
        return self._device


class EmbeddingBagCollection(_Collection):
    """Pools the rows of each feature: a KeyedJaggedTensor -> a KeyedTensor of [B, sum of D].

    tables: configs from TorchRec or this module. In the result, a feature that two tables use has
        the key "feature@table".
    is_weighted: whether ids have weights; rows are multiplied by the weights.
    device: accepted for compatibility; rows live in tables, on the CPU or on servers.
    optimizer: the optimizer for all tables; None uses the trainer's optimizer.

    >>> from sparsefleet.torchrec_like import KeyedJaggedTensor
    >>> config = EmbeddingBagConfig(
    ...     name="ads", embedding_dim=4, num_embeddings=1000, feature_names=["ads"]
    ... )
    >>> ids = KeyedJaggedTensor(["ads"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2]))
    >>> EmbeddingBagCollection(tables=[config])(ids)["ads"].shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: torch.device | None = None,  # noqa: ARG002
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(tables, optimizer)
        self._is_weighted = is_weighted
        self._keys = [key for key, _, _ in self._users]
        self._dims = [config.embedding_dim for _, _, config in self._users]
        self._poolings = [_pooling(config) for _, _, config in self._users]
        self.embedding_bags = _module_dict(self._tables)
        for config in tables:
            if _pooling(config) == "MEAN" and is_weighted:
                raise ConfigError(f"table '{config.name}': weighted ids need SUM pooling, got MEAN")

    def embedding_bag_configs(self) -> list[Any]:
        """Return the configs of all tables."""
        return self._configs

    def is_weighted(self) -> bool:
        return self._is_weighted

    def forward(self, features: Any) -> KeyedTensor:
        """Return pooled rows; features: a KeyedJaggedTensor from TorchRec or this module."""
        _check_features(features)
        if _has_own_strides(features):
            return KeyedTensor(self._keys, self._dims, self._pool_own_strides(features))
        if is_traced() or self._is_weighted or not features.values().is_cpu:
            pooled = self._pool_rows([features[feature] for _, feature, _ in self._users])
        else:
            pooled = sum_rows_by_bag(self._bags(features))
        if "MEAN" in self._poolings:
            parts = [
                _mean(total, features[feature]) if pooling == "MEAN" else total
                for (_, feature, _), pooling, total in zip(
                    self._users,
                    self._poolings,
                    torch.split(pooled, self._dims, dim=1),
                    strict=True,
                )
            ]
            pooled = torch.cat(parts, dim=1)
        return KeyedTensor(self._keys, self._dims, pooled)

    def _pool_own_strides(self, features: Any) -> Tensor:
        """Return pooled rows for features with batches of different sizes.

        The inverse indices say which bag of a feature belongs to each example.
        """
        parts = []
        names, chosen = features.inverse_indices()
        for (_, feature, config), pooling in zip(self._users, self._poolings, strict=True):
            ids = features[feature]
            rows: Tensor = self._tables[config.name](ids.values())
            if self._is_weighted:
                rows = rows * ids.weights().unsqueeze(1)
            total = BagsOfLengths(ids.lengths().long())(rows, 0)
            total = _mean(total, ids) if pooling == "MEAN" else total
            parts.append(total.index_select(0, chosen[names.index(feature)].long()))
        return torch.cat(parts, dim=1)

    def _bags(self, features: Any) -> list[Bags]:
        """Return the bags of each feature, table by table; checks that lengths match the ids."""
        lengths = np.ascontiguousarray(features.lengths().numpy(), np.int64)
        check_lengths(lengths, features.values().numel())
        places = {name: place for place, name in enumerate(features.keys())}
        ids, num_bags = values_by_key(features), features.stride()
        if len(lengths) != len(places) * num_bags:
            raise ShapeError(
                f"{len(places)} features of {num_bags} examples have {len(lengths)} lengths, "
                f"expected {len(places) * num_bags}, the same number of bags for each"
            )
        bags = []
        for _, feature, config in self._users:
            place = places.get(feature)
            if place is None:
                raise KeyError(
                    f"no feature {feature!r} in the keyed jagged tensor; its keys are "
                    f"{features.keys()}"
                )
            of_feature = lengths[place * num_bags : (place + 1) * num_bags]
            bags.append(Bags(self._tables[config.name], ids[place], of_feature))
        return bags

    def _pool_rows(self, jagged: list[Any]) -> Tensor:
        """Return the sum of each bag's rows, each row multiplied by the weight of its id."""
        parts = []
        for (_, _, config), ids in zip(self._users, jagged, strict=True):
            rows: Tensor = self._tables[config.name](ids.values())
            if self._is_weighted:
                rows = rows * ids.weights().unsqueeze(1)
            if is_traced():
                parts.append(traced_bags(ids.values(), ids.offsets()[:-1])(rows, 0))
            else:
                parts.append(BagsOfLengths(ids.lengths().long())(rows, 0))
        return torch.cat(parts, dim=1)


class EmbeddingCollection(_Collection):
    """Looks up each id: a KeyedJaggedTensor -> a dict of JaggedTensors with rows as values.

    tables, device, optimizer: as for `EmbeddingBagCollection`.
    need_indices: whether to return the ids as the weights of the results.

    >>> from sparsefleet.torchrec_like import KeyedJaggedTensor
    >>> config = EmbeddingConfig(
    ...     name="ads", embedding_dim=4, num_embeddings=1000, feature_names=["ads"]
    ... )
    >>> ids = KeyedJaggedTensor(["ads"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2]))
    >>> EmbeddingCollection(tables=[config])(ids)["ads"].values().shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        device: torch.device | None = None,  # noqa: ARG002
        need_indices: bool = False,
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(tables, optimizer)
        self._need_indices = need_indices
        self.embeddings = _module_dict(self._tables)

    def embedding_configs(self) -> list[Any]:
        """Return the configs of all tables."""
        return self._configs

    def need_indices(self) -> bool:
        return self._need_indices

    def forward(self, features: Any) -> dict[str, JaggedTensor]:
        """Return rows by feature; features: a KeyedJaggedTensor from TorchRec or this module."""
        _check_features(features)
        found = {}
        for key, feature, config in self._users:
            ids = features[feature]
            rows = self._tables[config.name](ids.values())
            kept = ids.values() if self._need_indices else None
            found[key] = JaggedTensor(rows, kept, lengths=ids.lengths())
        return found


def load_torchrec_state_dict(model: nn.Module, state: Mapping[str, Any]) -> dict[str, int]:
    """Load the `state_dict` of a TorchRec model into a model built from this module's classes.

    ``....embedding_bags.NAME.weight`` and ``....embeddings.NAME.weight`` become rows of the tables,
    with their indices as ids; everything else is loaded into the parameters. Raises ConfigError if
    anything is missing or left over. Returns the number of rows per table. In a job, call it on one
    worker.
    """
    wanted = {
        f"{path}.weight": module.name
        for path, module in model.named_modules()
        if isinstance(module, SparseModule)
    }
    for key in wanted:
        if key not in state:
            raise ConfigError(
                f"the state has no '{key}'; it has {', '.join(sorted(state))[:500] or 'nothing'}"
                f"{_prefix_advice(key, state)}"
            )
        if not isinstance(state[key], Tensor):
            raise ConfigError(
                f"'{key}' is a {type(state[key]).__name__}, expected a Tensor; gather sharded "
                "tables first, for example with TorchRec's state_dict_gather"
            )
    rest = {key: value for key, value in state.items() if key not in wanted}
    own = [key for key in model.state_dict() if not key.endswith("_extra_state")]
    missing = [key for key in own if key not in rest]
    unexpected = [key for key in rest if key not in own and not key.endswith("_extra_state")]
    if missing or unexpected:  # before anything is loaded
        raise ConfigError(
            f"the state does not match the model: missing keys {missing or 'none'}, unexpected "
            f"keys {unexpected or 'none'}"
        )
    model.load_state_dict(rest, strict=False)
    rows = import_embeddings(model, state)
    return {wanted[f"{path}.weight"]: count for path, count in rows.items()}


def _prefix_advice(key: str, state: Mapping[str, Any]) -> str:
    """Return what to do if the keys of the state have a prefix, as those of a wrapped model do."""
    for found in state:
        if found.endswith("." + key):
            prefix = found.removesuffix(key)
            return f"; remove the prefix {prefix!r} from its keys"
    return ""


def torchrec_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state for `load_state_dict` of the same network in TorchRec.

    A table becomes a weight float32[num_embeddings, D] with the rows of the ids 0 to
    num_embeddings - 1; rows that training has not created have their initial values. Rows with
    other ids are left out, since TorchRec has no place for them. In a job, call it on one worker.
    """
    found = {
        name: value.detach().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    for path, module in model.named_modules():
        if not isinstance(module, _Collection):
            continue
        kind = "embedding_bags" if isinstance(module, EmbeddingBagCollection) else "embeddings"
        for config in module._configs:
            name = f"{kind}.{config.name}.weight"
            rows = _rows_of_all(module._tables[config.name], config.num_embeddings)
            found[f"{path}.{name}" if path else name] = rows
    return found


def _rows_of_all(table: SparseEmbedding, num_ids: int) -> Tensor:
    """Return the rows of the ids 0 to num_ids - 1, without creating rows."""
    was_training = table.training
    table.eval()
    try:
        with torch.no_grad():
            starts = range(0, num_ids, _READ_AT_ONCE)
            parts = [
                table(torch.arange(first, min(first + _READ_AT_ONCE, num_ids))) for first in starts
            ]
    finally:
        table.train(was_training)
    return torch.cat(parts)


def _check(config: Any, names: list[str]) -> None:
    """Raise ConfigError for a config that cannot be a table; it may be TorchRec's own."""
    if not config.name or names.count(config.name) > 1:
        raise ConfigError(f"tables must have unique names, got {names}")
    if not config.feature_names:
        raise ConfigError(f"table '{config.name}': feature_names is empty, expected at least one")
    if isinstance(config.feature_names, str):
        raise ConfigError(
            f"table '{config.name}': feature_names must be a list, got {config.feature_names!r}; "
            f"pass [{config.feature_names!r}]"
        )
    num = config.num_embeddings
    if not isinstance(num, int) or num < 1:
        raise ConfigError(
            f"table '{config.name}': num_embeddings must be an int >= 1, got {num!r}; it sets the "
            "range of initial values"
        )
    if getattr(config.data_type, "name", None) not in _ROW_DTYPES:
        raise ConfigError(
            f"table '{config.name}': data_type must be DataType.{', DataType.'.join(_ROW_DTYPES)}, "
            f"got {config.data_type!r}"
        )


def _check_features(features: Any) -> None:
    """Raise ConfigError unless `features` has the methods of a KeyedJaggedTensor."""
    if not callable(getattr(features, "lengths", None)):
        raise ConfigError(
            f"the features must be a KeyedJaggedTensor, got a {type(features).__name__}; create "
            "one with KeyedJaggedTensor.from_lengths_sync(keys, values, lengths)"
        )


def _module_dict(tables: Mapping[str, SparseEmbedding]) -> nn.ModuleDict:
    """Return the tables as a module, which has to accept their names, as in TorchRec."""
    made = nn.ModuleDict()
    for name, table in tables.items():
        try:
            made[name] = table
        except KeyError as error:  # an attribute of ModuleDict, a dot
            raise ConfigError(
                f"table '{name}': nn.ModuleDict does not accept this name ({error.args[0]}); "
                "rename the table"
            ) from error
    return made


def _table(config: Any, optimizer: Optimizer | None) -> SparseEmbedding:
    uniform = _uniform_of(config)
    table = SparseEmbedding(
        config.name,
        config.embedding_dim,
        initializer=uniform or Uniform(config.get_weight_init_min(), config.get_weight_init_max()),
        optimizer=optimizer,
        unknown="initial",
        row_dtype=_ROW_DTYPES[config.data_type.name],
    )
    if uniform is None:
        weight = torch.empty(config.num_embeddings, config.embedding_dim)
        filled = config.init_fn(weight)
        import_embedding(table, weight if filled is None else filled)
    return table


def _uniform_of(config: Any) -> Uniform | None:
    """Return the initial values if they are uniform, so that rows need not exist before first use.

    TorchRec's configs always have an `init_fn`, by default a partial of `nn.init.uniform_`.
    """
    fill: Any = config.init_fn
    named: Mapping[str, Any] = {}
    if fill is None:
        return Uniform(config.get_weight_init_min(), config.get_weight_init_max())
    if isinstance(fill, functools.partial) and not fill.args:
        named, fill = fill.keywords, fill.func
    if fill is not nn.init.uniform_ or not named.keys() <= {"a", "b"}:
        return None
    return Uniform(named.get("a", 0.0), named.get("b", 1.0))


def _has_own_strides(features: Any) -> bool:
    """Return whether features have batches of different sizes, which TorchRec allows."""
    ask = getattr(features, "variable_stride_per_key", None)
    return bool(ask()) if callable(ask) else False


def _pooling(config: Any) -> str:
    """Return the name of the pooling; TorchRec's enum has the same names as ours."""
    if not hasattr(config, "pooling"):
        raise ConfigError(
            f"table '{config.name}': EmbeddingBagCollection needs an EmbeddingBagConfig, got an "
            f"{type(config).__name__}; for rows without pooling, use EmbeddingCollection"
        )
    name = getattr(config.pooling, "name", None)
    if name not in ("SUM", "MEAN"):
        raise ConfigError(
            f"table '{config.name}': pooling must be PoolingType.SUM or PoolingType.MEAN, got "
            f"{config.pooling!r}"
        )
    return str(name)


def _mean(total: Tensor, ids: Any) -> Tensor:
    num_ids: Tensor = ids.lengths().clamp(min=1).to(total.dtype)
    return total / num_ids.unsqueeze(1)
