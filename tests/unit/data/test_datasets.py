"""Datasets of other libraries as sources: Hugging Face, Arrow and, in tests/process, Ray Data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

from sparsefleet.data import ArrowStream, Reader, Slot
from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric
from sparsefleet.errors import BadLineError, ConfigError, DataError, InputFileError, SchemaError

FEATURES = Features(
    Categorical("ad"),
    Categorical("city", hash_seed=1),
    MultiValued("tags", hash_seed=2),
    Numeric("price", missing=0.0),
    label="click",
)
ROWS: list[dict[str, Any]] = [
    {
        "ad": at,
        "city": f"city {at % 7}",
        "tags": [f"tag {tag}" for tag in range(at % 4)],
        "price": None if at % 5 == 0 else at * 0.5,
        "click": float(at % 2),
        "unused": "x",
    }
    for at in range(100)
]


def batches_in_memory() -> list[Any]:
    return list(FEATURES.memory({name: [row[name] for row in ROWS] for name in ROWS[0]}, 30))


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for (inputs, labels), (wanted_inputs, wanted_labels) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(labels, wanted_labels)
        assert inputs.keys() == wanted_inputs.keys()
        for name, column in inputs.items():
            np.testing.assert_equal(column, wanted_inputs[name])


def examples() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    return pytest.importorskip("datasets", reason="pip install datasets")


@pytest.mark.parametrize(
    "kind", ["dataset", "torch format", "selected", "stream", "shards", "generator"]
)
def test_a_hugging_face_dataset_is_read_as_the_same_columns_in_memory(
    hugging_face: Any, kind: str
) -> None:
    whole = hugging_face.Dataset.from_list(ROWS)
    dataset = {
        "dataset": lambda: whole,
        "torch format": lambda: whole.with_format("torch"),
        "selected": lambda: whole.select(range(99, -1, -1)).select(range(99, -1, -1)),
        "stream": whole.to_iterable_dataset,
        "shards": lambda: whole.to_iterable_dataset(num_shards=3),
        "generator": lambda: hugging_face.IterableDataset.from_generator(examples),
    }[kind]()
    assert_same(list(FEATURES.reader(dataset, batch_size=30)), batches_in_memory())


def test_workers_divide_a_hugging_face_dataset_and_a_reader_resumes_in_it(
    hugging_face: Any,
) -> None:
    dataset = hugging_face.Dataset.from_list(ROWS)
    seen = [
        ad
        for index in (0, 1, 2)
        for inputs, _ in FEATURES.reader(dataset, batch_size=9, worker_index=index, worker_num=3)
        for ad in inputs["ad"].tolist()
    ]
    assert sorted(seen) == list(range(100))
    reader = FEATURES.reader(dataset, batch_size=30)
    first = next(iter(reader))
    again = FEATURES.reader(dataset, batch_size=30)
    again.load_state_dict(reader.state_dict())
    reader.close()
    assert_same([first, *again], batches_in_memory())


def test_bad_values_of_a_hugging_face_dataset_are_named(hugging_face: Any) -> None:
    rows = [*ROWS[:3], {**ROWS[3], "ad": None}]
    dataset = hugging_face.Dataset.from_list(rows)
    with pytest.raises(BadLineError, match=r"<Dataset>, row 4, column 'ad': .*found null"):
        list(FEATURES.reader(dataset, batch_size=30))
    dataset = hugging_face.Dataset.from_list(ROWS).remove_columns("city")
    with pytest.raises(SchemaError, match=r"<Dataset>: no column called 'city'"):
        list(FEATURES.reader(dataset, batch_size=30))
    parts = hugging_face.DatasetDict({"train": dataset})
    with pytest.raises(ConfigError, match=r"DatasetDict .*'train'"):
        FEATURES.reader(parts, batch_size=30)


@pytest.mark.parametrize("kind", ["table", "record batch", "dataset"])
def test_arrow_tables_are_read_without_a_function(kind: str) -> None:
    table = pa.Table.from_pylist(ROWS)
    source = {
        "table": lambda: table,
        "record batch": lambda: table.to_batches()[0],
        "dataset": lambda: pyarrow.dataset.dataset(table),
    }[kind]()
    assert_same(list(FEATURES.reader(source, batch_size=30)), batches_in_memory())


def test_tables_of_a_stream_may_differ_in_types_and_be_empty() -> None:
    first = pa.Table.from_pylist(ROWS[:1])  # price: null, tags: list of null
    tables = [first.slice(0, 0), first, pa.Table.from_pylist(ROWS[1:])]
    assert tables[1].schema != tables[2].schema
    stream = FEATURES.arrow_stream(lambda: tables)
    assert_same(list(FEATURES.reader(None, stream, batch_size=30)), batches_in_memory())
    renamed = [first, pa.Table.from_pylist(ROWS[1:]).drop_columns(["ad"])]
    stream = FEATURES.arrow_stream(lambda: renamed)
    with pytest.raises(SchemaError, match="no column called 'ad'"):
        list(FEATURES.reader(None, stream, batch_size=30))


def test_a_source_without_rows_or_tables_is_an_error() -> None:
    empty = pa.Table.from_pylist(ROWS).slice(0, 0)
    with pytest.raises(InputFileError, match="no records in 1 file.*<Table>: 0 lines"):
        list(FEATURES.reader(empty, batch_size=30))
    with pytest.raises(DataError, match="the ArrowStream source yielded no table"):
        list(Reader(None, ArrowStream(list, Slot("ad", "uint64", ())), 2))


class Lazy:
    """A Ray Data dataset that each worker would execute itself."""

    def iter_batches(self, *, batch_format: str, batch_size: int) -> Iterator[pa.Table]:
        assert batch_format == "pyarrow"
        yield from (pa.table({"ad": range(batch_size)[:at]}) for at in (2, 4))


class MaterializedDataset(Lazy):
    """A Ray Data dataset whose rows have a fixed order."""


def test_workers_divide_a_dataset_of_ray_only_if_its_order_is_fixed() -> None:
    def rows(source: object, worker_num: int) -> list[int]:
        stream = ArrowStream(source, Slot("ad", "uint64", ()))
        reader = Reader(None, stream, 8, worker_index=0, worker_num=worker_num)
        return [row for batch in reader for row in batch["ad"].tolist()]

    assert rows(MaterializedDataset(), 2) == [0, 0, 2]
    assert rows(Lazy(), 1) == [0, 1, 0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"<Lazy> for worker_num=2: .*dataset\.materialize\(\)"):
        rows(Lazy(), 2)


@pytest.mark.parametrize("source", [3, {"ad": [1]}, None])
def test_other_objects_are_refused_with_what_is_wanted(source: Any) -> None:
    with pytest.raises(ConfigError, match="a Hugging Face or Ray Data dataset, an Arrow table"):
        ArrowStream(source, Slot("ad", "uint64", ()))
