"""Tables that store their rows in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import ConfigError, TableConflictError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag, bind
from sparsefleet.store import Constant, LocalStore, Normal, RowDtype, Store, TableSpec
from sparsefleet.torchrec_like import DataType, EmbeddingBagCollection, EmbeddingBagConfig

KEYS = np.arange(500, dtype=np.int64) * 977
SMALL: list[RowDtype] = ["bf16", "int8"]
BYTES = {"float32": 268, "bf16": 140, "int8": 80}


def spec_of(row_dtype: RowDtype, **changes: object) -> TableSpec:
    spec = TableSpec(
        name="ads",
        dim=64,
        optimizer=optim.RowwiseAdagrad(lr=0.1),
        initializer=Normal(0.0, 0.1),
        seed=3,
        row_dtype=row_dtype,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def train(store: Store, steps: int = 5) -> None:
    rng = np.random.default_rng(7)
    for _ in range(steps):
        store.push("ads", KEYS, rng.normal(size=(len(KEYS), 64)).astype(np.float32))


def values_of(store: Store) -> np.ndarray:
    return store.pull("ads", KEYS, train=False)


@pytest.mark.parametrize("row_dtype", BYTES)
def test_stats_count_the_bytes_that_are_stored(row_dtype: RowDtype) -> None:
    with LocalStore() as store:
        store.define(spec_of(row_dtype))
        store.pull("ads", KEYS)
        assert store.stats()[0]["table.ads.payload_bytes"] == BYTES[row_dtype] * len(KEYS)


@pytest.mark.parametrize("row_dtype", SMALL)
def test_training_stays_close_to_float32(row_dtype: RowDtype) -> None:
    found = []
    for one in ("float32", row_dtype):
        with LocalStore() as store:
            store.define(spec_of(one))
            train(store)
            found.append(values_of(store))
    difference = np.abs(found[0] - found[1])
    assert 0 < difference.max() < (0.02 if row_dtype == "bf16" else 0.06)
    assert abs((found[0] - found[1]).mean()) < 2e-4  # rounding is unbiased


@pytest.mark.parametrize("row_dtype", SMALL)
def test_constant_steps_below_the_precision_add_up(row_dtype: RowDtype) -> None:
    with LocalStore() as store:
        store.define(
            spec_of(row_dtype, optimizer=optim.Adagrad(lr=0.002), initializer=Constant(1.0))
        )
        for _ in range(400):
            store.push("ads", KEYS, np.ones((len(KEYS), 64), np.float32))
        moved = 1.0 - values_of(store).mean()
    wanted = 0.002 * sum(1 / np.sqrt(n) for n in range(1, 401))
    assert moved == pytest.approx(wanted, rel=0.02)


def test_another_row_dtype_under_the_same_name_is_named() -> None:
    with NativeServers(2) as servers, servers.connect() as one, servers.connect() as other:
        one.define(spec_of("bf16"))
        with pytest.raises(TableConflictError, match="row_dtype is bf16, expected int8"):
            other.define(spec_of("int8"))
        with pytest.raises(TableConflictError, match="row_dtype is bf16, expected float32"):
            other.define(spec_of("float32"))
        other.define(spec_of("bf16"))


@pytest.mark.parametrize("row_dtype", SMALL)
def test_checkpoint_holds_float32_values_that_load_back_exactly(
    row_dtype: RowDtype, tmp_path: Path
) -> None:
    with LocalStore() as store, LocalStore() as again:
        store.define(spec_of(row_dtype))
        train(store)
        store.save(tmp_path)
        again.define(spec_of(row_dtype))
        again.load(tmp_path)
        np.testing.assert_array_equal(values_of(again), values_of(store))
        train(store, 2)
        train(again, 2)
        np.testing.assert_array_equal(values_of(again), values_of(store))
    (entry,) = Checkpoint.open(str(tmp_path)).manifest.tables
    assert entry.settings["row_dtype"] == row_dtype
    file = pq.read_table(tmp_path / entry.files[0].path)
    assert str(file.schema.field("values").type.value_type) == "float"


@pytest.mark.parametrize("row_dtype", SMALL)
def test_checkpoint_of_another_row_dtype_loads(row_dtype: RowDtype, tmp_path: Path) -> None:
    with LocalStore() as wide, LocalStore() as narrow, LocalStore() as back:
        wide.define(spec_of("float32"))
        train(wide)
        wide.save(tmp_path / "wide")
        narrow.define(spec_of(row_dtype))
        narrow.load(tmp_path / "wide")
        difference = np.abs(values_of(narrow) - values_of(wide))
        assert difference.max() < (0.01 if row_dtype == "bf16" else 0.02)
        narrow.save(tmp_path / "narrow")
        back.define(spec_of("float32"))
        back.load(tmp_path / "narrow")
        np.testing.assert_array_equal(values_of(back), values_of(narrow))


@pytest.mark.parametrize("row_dtype", SMALL)
def test_embeddings_pass_it_to_their_table(row_dtype: RowDtype) -> None:
    ids = torch.arange(6)
    for module in (
        SparseEmbedding("ads", 4, row_dtype=row_dtype, unknown="initial"),
        SparseEmbeddingBag("ads", 4, row_dtype=row_dtype, unknown="initial"),
    ):
        assert module.spec().row_dtype == row_dtype
    unseen = SparseEmbedding("ads", 4, row_dtype=row_dtype, unknown="initial").eval()(ids)
    seen = SparseEmbedding("ads", 4, row_dtype=row_dtype)(ids).detach()
    torch.testing.assert_close(unseen, seen, rtol=0, atol=0)


def test_modules_that_disagree_about_it_are_named() -> None:
    model = torch.nn.ModuleList(
        [SparseEmbedding("ads", 4, row_dtype="bf16"), SparseEmbedding("ads", 4)]
    )
    with pytest.raises(ConfigError, match="row_dtype is 'bf16' and 'float32'"):
        bind(model, LocalStore())


def test_a_state_dict_moves_rows_between_row_dtypes() -> None:
    ids = torch.arange(6)
    narrow, wide = SparseEmbedding("ads", 4, row_dtype="int8"), SparseEmbedding("ads", 4)
    rows = narrow(ids).detach()
    wide.load_state_dict(narrow.state_dict())
    torch.testing.assert_close(wide(ids).detach(), rows, rtol=0, atol=0)


def test_torchrec_data_types_choose_it() -> None:
    def made(data_type: DataType) -> EmbeddingBagCollection:
        config = EmbeddingBagConfig(
            name="ads", embedding_dim=4, num_embeddings=10, feature_names=["ad"]
        )
        config.data_type = data_type
        return EmbeddingBagCollection(tables=[config])

    (table,) = [m for m in made(DataType.BF16).modules() if isinstance(m, SparseEmbedding)]
    assert table.spec().row_dtype == "bf16"
    with pytest.raises(
        ConfigError, match="table .ads.: data_type must be DataType.FP32, .*INT8, got"
    ):
        made(DataType.FP16)
