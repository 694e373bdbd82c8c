from __future__ import annotations

import math

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.optim import Adam, Lamb, Lars, RowwiseAdagrad
from sparsefleet.store import AdmitByCount, AdmitByProbability, DenseSpec, Evict, TableSpec


def test_the_limits_are_allowed() -> None:
    TableSpec(name="x" * 255, dim=4096, seed=2**64 - 1)
    TableSpec(name="é", dim=1, seed=0, admission=AdmitByCount(1), eviction=Evict(min_norm=1e-9))
    DenseSpec(name="mlp", size=1, min_block_size=1, non_finite="reject_row")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 256},
        {"name": "é" * 128},
        {"name": 3},
        {"name": "line\n"},
        {"name": "\ud800"},
        {"dim": 0},
        {"dim": 4097},
        {"dim": 8.0},
        {"dim": True},
        {"seed": -1},
        {"seed": 2**64},
        {"optimizer": "adam"},
        {"optimizer": Adam},
        {"initializer": 0.0},
        {"admission": 3},
        {"eviction": None},
        {"non_finite": "ignore"},
        {"track_count": 1},
        {"row_dtype": "float16"},
        {"row_dtype": None},
    ],
)
def test_bad_table_field_is_refused_naming_it(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"^TableSpec\.{name} must be .*, got "):
        TableSpec(**{"name": "ads", "dim": 8, **fields})  # type: ignore[arg-type]


def test_norms_of_whole_parameters_are_for_dense_tables_on_one_server() -> None:
    DenseSpec(name="w", size=8192, optimizer=Lamb())
    with pytest.raises(ConfigError, match=r"DenseSpec.min_block_size must be at least `size`"):
        DenseSpec(name="w", size=8193, optimizer=Lamb())
    with pytest.raises(
        ConfigError, match=r"TableSpec.optimizer must be an optimizer that updates rows"
    ):
        TableSpec(name="w", dim=4, optimizer=Lars())


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 0},
        {"size": 2**56 + 1},
        {"min_block_size": 0},
        {"optimizer": RowwiseAdagrad()},
        {"non_finite": None},
    ],
)
def test_bad_dense_field_is_refused_naming_it(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"^DenseSpec\.{name} must be .*, got "):
        DenseSpec(**{"name": "mlp", "size": 8, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, 2**32])
def test_bad_admission_count_is_refused(count: object) -> None:
    with pytest.raises(ConfigError, match=r"^AdmitByCount\.count"):
        AdmitByCount(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("probability", [0, -0.1, 1.1, math.nan])
def test_bad_admission_probability_is_refused(probability: float) -> None:
    with pytest.raises(ConfigError, match=r"^AdmitByProbability\.probability"):
        AdmitByProbability(probability)


@pytest.mark.parametrize(
    "fields",
    [{"untouched_steps": -1}, {"untouched_seconds": 2**32}, {"min_count": 2**31}, {"min_norm": -1}],
)
def test_bad_eviction_rule_is_refused(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"^Evict\.{name}"):
        Evict(**fields)  # type: ignore[arg-type]
