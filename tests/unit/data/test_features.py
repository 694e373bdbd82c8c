from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.data import ArrowStream, Field, Reader, Slot, hash64
from sparsefleet.data.features import Categorical, Features, Label, MultiValued, Numeric, Sequence
from sparsefleet.errors import BadLineError, ConfigError, DataError

ALL = Features(
    Numeric("age", missing=-1.0),
    Categorical("city", hash_seed=3),
    Categorical("sex", vocabulary=("Female", "Male")),
    MultiValued("tags", separator="|", hash_seed=5, max_length=2),
    Sequence("seen", separator=" ", max_length=3),
    label=Label("income", positive=">50K"),
)
LINES = """\
city,age,sex,tags,seen,income
Ulm,31,Male,a|b|c,1 2 3 4 5,>50K
Bonn,,Other,,7,<=50K
"""


def only_batch(reader: Reader) -> tuple[dict, np.ndarray]:
    (batch,) = list(reader)
    return batch


def check(inputs: dict, labels: np.ndarray) -> None:
    assert inputs["age"].tolist() == [31.0, -1.0]
    assert inputs["city"].view(np.uint64).tolist() == [hash64("Ulm", 3), hash64("Bonn", 3)]
    assert inputs["sex"].tolist() == [2, 0]
    tags, offsets = inputs["tags"]
    assert tags.view(np.uint64).tolist() == [hash64("b", 5), hash64("c", 5)]
    assert offsets.tolist() == [0, 2]
    seen, offsets = inputs["seen"]
    assert (seen.tolist(), offsets.tolist()) == ([3, 4, 5, 7], [0, 3])
    assert labels.dtype == np.float32
    assert labels.tolist() == [1.0, 0.0]


def columns() -> dict:
    return {
        "city": ["Ulm", "Bonn"],
        "age": [31.0, None],
        "sex": ["Male", "Other"],
        "tags": [["a", "b", "c"], []],
        "seen": [[1, 2, 3, 4, 5], [7]],
        "income": [">50K", "<=50K"],
    }


def test_one_description_reads_csv_parquet_streams_and_memory_alike(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text(LINES)
    check(*only_batch(ALL.reader(tmp_path / "day.csv", batch_size=8)))
    (tmp_path / "day.tsv").write_text(LINES.replace(",", "\t"))
    check(*only_batch(ALL.reader(tmp_path / "day.tsv", batch_size=8)))
    pq.write_table(pa.table(columns()), tmp_path / "day.parquet")
    check(*only_batch(ALL.reader(tmp_path / "day.parquet", batch_size=8)))
    stream = ALL.arrow_stream(lambda: [pa.table(columns())])
    check(*only_batch(ALL.reader(None, stream, batch_size=8)))
    check(*only_batch(ALL.memory(columns(), 8)))


def test_columns_in_memory_are_split_among_workers_and_can_be_shuffled() -> None:
    features = Features(Categorical("ad"), label="click")
    given = {"ad": np.arange(10), "click": np.zeros(10), "unused": None}
    seen = [
        batch[0]["ad"].tolist()
        for index in (0, 1, 2)
        for batch in features.memory(given, 100, worker_index=index, worker_num=3)
    ]
    assert seen == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    data = features.memory(given, 100)
    data.local_shuffle(seed=1)
    ((inputs, _),) = data
    assert sorted(inputs["ad"].tolist()) == list(range(10))
    assert inputs["ad"].tolist() != list(range(10))
    with pytest.raises(ConfigError, match="worker 14 of 20 gets none of the 10 examples"):
        features.memory(given, 100, worker_index=14, worker_num=20)


def test_lists_in_memory_are_split_among_workers_with_their_ids() -> None:
    features = Features(MultiValued("tags"), label="click")
    given = {"tags": [[0], [10, 11], [], [30, 31, 32], [40]], "click": np.arange(5)}
    found = []
    for index in (0, 1):
        ((inputs, labels),) = features.memory(given, 100, worker_index=index, worker_num=2)
        values, starts = inputs["tags"]
        found.append((values.tolist(), starts.tolist(), labels.tolist()))
    assert found == [([0, 40], [0, 1, 1], [0, 2, 4]), ([10, 11, 30, 31, 32], [0, 2], [1, 3])]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"id": [5, None]}, "row 2, column 'id': expected a 64-bit id or a string, found None"),
        ({"id": [5, 6.5]}, "row 2, column 'id': expected a 64-bit id or a string, found 6.5"),
        ({"id": [5, 2**70]}, "row 2, column 'id': expected a 64-bit id or a string, found 1180"),
        ({"id": 5}, "column 'id': expected an array or list .*, found a int"),
        ({"id": (each for each in (5, 6))}, "column 'id': .*, found a generator"),
        ({"id": "56"}, "column 'id': .*, found a str"),
        ({"age": [1.0, "old"]}, "row 2, column 'age': expected a number, found 'old'"),
        ({"age": [1.0, float("inf")]}, "row 2, column 'age': expected a finite number"),
        ({"tags": [["a"], "b|c"]}, r"row 2, column 'tags': expected a list of ids, found 'b\|c'"),
        ({"tags": [["a"], 5]}, "row 2, column 'tags': expected a list of ids, found 5"),
        ({"seen": [[1], [1.5]]}, "row 2, column 'seen': expected a 64-bit id or a string, found 1"),
        ({"seen": [[1], [None]]}, "row 2, column 'seen': .* found None"),
        *(
            (
                {"seen": ([1, 2, 3], offsets)},
                "column 'seen': expected offsets that rise from 0 to the 3",
            )
            for offsets in ([0, 1, 5], [0, 1, 2], [1, 2, 3], [-2, 1, 3], [0, 4, 3], [0.0, 1.0, 3.0])
        ),
        ({"y": [1.0]}, "column 'y' has 1 examples, but 'age' has 2"),
        ({name: [] for name in ("age", "id", "tags", "seen", "y")}, "the columns have no"),
    ],
)
def test_a_bad_value_in_memory_names_row_column_and_wanted_form(
    wrong: dict[str, object], message: str
) -> None:
    features = Features(
        Numeric("age"),
        Categorical("id"),
        MultiValued("tags", hash_seed=1),
        Sequence("seen"),
        label="y",
    )
    given = {"age": [1, 2], "id": [5, 6], "tags": [["a"], []], "seen": [[1], [2**64 - 1]]}
    assert len(features.memory({**given, "y": [0, 1]}, 8)) == 1
    with pytest.raises((DataError, ConfigError), match=message):
        features.memory({**given, "y": [0, 1], **wrong}, 8)


def test_a_bad_value_names_file_row_column_and_wanted_form(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text(LINES + "Ulm,old,Male,,1,<=50K\n")
    with pytest.raises(BadLineError, match=r"day.csv, line 4.*'age'.*found 'old'"):
        list(ALL.reader(path, batch_size=8))
    table = pa.table({**columns(), "seen": [[1], None]})
    stream = ALL.arrow_stream(lambda: [table])
    with pytest.raises(BadLineError, match=r"row 2, column 'seen': expected a list, found null"):
        list(ALL.reader(None, stream, batch_size=8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Features(), "at least one feature"),
        (lambda: Features(Numeric("a"), Categorical("a")), "two inputs are named 'a'"),
        (lambda: Features(Numeric("a"), label="a"), "two inputs are named 'a'"),
        (lambda: Features("age"), "takes Numeric, Categorical"),
        (
            lambda: Features(Categorical("a", table="t", dim=4), Sequence("b", table="t")),
            "'a' and 'b' share table 't' but have dim 4 and 8",
        ),
        (lambda: Categorical("a", dim=0), "feature 'a': dim must be an int in 1..4096, got 0"),
        (lambda: Numeric("a", std=0.0), "feature 'a': std must be a number > 0, got 0.0"),
        (lambda: Numeric("a", transform="sqrt"), "feature 'a': transform"),
        (lambda: MultiValued("a", pooling="max"), "pooling must be"),
        (lambda: Sequence("a", max_length=0), "max_values must be an int >= 1"),
        (lambda: Categorical("a", vocabulary=("x", "y", "x")), "vocabulary has 'x' twice"),
        (lambda: Field("a", vocabulary=("x",)), "vocabulary requires hash_seed"),
        (lambda: ALL["town"], "no feature is named 'town'; the names are age, city"),
        (lambda: ALL.reader("day.json", batch_size=1), "suffix of 'day.json'"),
        (lambda: ALL.reader(3, batch_size=1), "takes paths, a Hugging Face .* got 3"),
        (lambda: ALL.memory({"age": [1.0]}, 8), "no column 'city'; found age"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_a_part_of_a_description_keeps_order_and_label() -> None:
    part = ALL.only("sex", "age")
    assert [feature.name for feature in part] == ["sex", "age"]
    assert part.label is ALL.label
    assert [feature.name for feature in ALL.without("age", "tags", "seen")] == ["city", "sex"]


def test_streams_of_tables_resume_and_report_their_own_errors() -> None:
    tables = [pa.table({"ad": list(range(begin, begin + 3))}) for begin in (0, 3, 6)]
    format_ = ArrowStream(lambda: iter(tables), Slot("ad", "uint64", ()))
    reader = Reader(None, format_, 2)
    batches = iter(reader)
    assert next(batches)["ad"].tolist() == [0, 1]
    state = reader.state_dict()
    reader.close()
    again = Reader(None, format_, 2)
    again.load_state_dict(state)
    assert [i for batch in again for i in batch["ad"].tolist()] == list(range(2, 9))

    def failing() -> object:
        yield tables[0]
        raise OSError("the source is gone")

    with pytest.raises(
        DataError, match="table 2: the function passed to ArrowStream failed: OSError"
    ):
        list(Reader(None, ArrowStream(failing, Slot("ad", "uint64", ())), 2))
    with pytest.raises(DataError, match="yielded no table"):
        list(Reader(None, ArrowStream(list, Slot("ad", "uint64", ())), 2))
    with pytest.raises(DataError, match="expected a pyarrow Table or RecordBatch, found a dict"):
        list(Reader(None, ArrowStream(lambda: [{"ad": 1}], Slot("ad", "uint64", ())), 2))


def test_columns_in_memory_are_not_kept_beside_their_records() -> None:
    features = Features(Categorical("city", hash_seed=3), label="y")
    cities = np.array([f"city {number}" for number in range(100)])
    column = weakref.ref(cities)
    data = features.memory({"city": cities, "y": np.ones(100, np.float32)}, 10)
    del cities
    gc.collect()
    assert column() is None
    assert [(slot.name, slot.dtype) for slot in data.description] == [
        ("city", "uint64"),
        ("y", "float"),
    ]
