from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.support.checkpoints import ADS, WORDS, save, synthetic_rows

from sparsefleet.checkpoint import (
    Checkpoint,
    RowChunk,
    import_paddle,
    import_table,
    import_vectors,
    read_paddle_persistables,
)
from sparsefleet.cli.main import main
from sparsefleet.errors import (
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
    InputFileError,
    InputMissingError,
)
from sparsefleet.store import LocalStore, TableSpec


def one_chunk(path: Path, **options: Any) -> RowChunk:
    (chunk,) = import_table(str(path), **options)
    return chunk


@pytest.mark.parametrize(
    "text",
    [
        "key,x,y\n7,0.5,1\n18446744073709551615,2,4\n",
        "x,y,key\n0.5,1,7\n2,4,18446744073709551615\n",
        "id,a,b\n 7,0.5,1\n18446744073709551615,2,4\n",
        "key,vector\n7,0.5 1\n18446744073709551615,2 4\n",
        'key,vector\n7,"[0.5, 1.0]"\n18446744073709551615,"[2, 4]"\n',
        "key,vector\n7,0.5;1\n18446744073709551615,2;4\n",
        "key,x,y\n7,0.5,1\n-1,2,4\n",
    ],
)
def test_vectors_of_a_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "v.csv").write_text(text)
    chunk = one_chunk(tmp_path / "v.csv")
    assert chunk.keys.tolist() == [7, 2**64 - 1]
    assert chunk.values.dtype == np.float32
    assert chunk.values.tolist() == [[0.5, 1], [2, 4]]
    assert (chunk.state.shape, chunk.counters.shape) == ((2, 0), (2, 0))


def test_a_csv_without_header_compressed_and_with_another_key(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("7,0.5,1\n9,2,4\n")
    assert one_chunk(tmp_path / "v.csv", has_header=False).values.tolist() == [[0.5, 1], [2, 4]]
    (tmp_path / "w.csv.gz").write_bytes(gzip.compress(b"a,id,b\n1,8,2\n"))
    chunk = one_chunk(tmp_path / "w.csv.gz", key_column="id")
    assert (chunk.keys.tolist(), chunk.values.tolist()) == ([8], [[1, 2]])


@pytest.mark.parametrize("key", [pa.int64(), pa.uint64(), pa.int32()])
@pytest.mark.parametrize(
    "vector", [pa.list_(pa.float32()), pa.list_(pa.float64(), 2), pa.large_list(pa.float16())]
)
def test_vectors_of_a_parquet(tmp_path: Path, key: pa.DataType, vector: pa.DataType) -> None:
    values = np.array([[0.5, 1], [2, 4]], np.float16)
    columns = {"key": pa.array([7, 9], key), "emb": pa.array(list(values), vector)}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    chunk = one_chunk(tmp_path / "v.parquet")
    assert (chunk.keys.tolist(), chunk.values.tolist()) == ([7, 9], values.tolist())


def test_numbers_of_a_parquet_in_columns_of_their_own(tmp_path: Path) -> None:
    columns = {"key": [-1, 9], "a": [0.5, 2.0], "b": pa.array([1, 4], pa.int8())}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    chunk = one_chunk(tmp_path / "v.parquet")
    assert (chunk.keys.tolist(), chunk.values.tolist()) == ([2**64 - 1, 9], [[0.5, 1], [2, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,x\n7,0.5\n8,\n", "found none in some rows of column 'x'"),
        ("key,x\n7.5,1\n", "7.5"),
        ("key,x\n,1\n", "cannot be read"),
        ("key,v\n7,1 2\n8,1\n", "found 1 to 2"),
        ("key,v\n7,one\n", "one"),
        ("key\n7\n", "no other column"),
        ("key,x,y\n7,1,word\n", "found .*string"),
        ("key,x\n7,1,2\n", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_files_without_vectors_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(InputFileError, match=f"v.csv.*{message}"):
        list(import_table(str(tmp_path / "v.csv")))


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such file"):
        list(import_table(str(tmp_path / "v.csv")))
    with pytest.raises(ConfigError, match="must end with"):
        list(import_table(str(tmp_path / "v.txt")))
    (tmp_path / "v.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputFileError, match="v.parquet: cannot be read"):
        list(import_table(str(tmp_path / "v.parquet")))
    (tmp_path / "w.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="key_column must be one of"):
        list(import_table(str(tmp_path / "w.csv"), key_column="key"))


def test_imported_vectors_fit_any_table_of_their_width(tmp_path: Path) -> None:
    lines = [f"{key},{key}.5,0,0,1" for key in range(200_000)]
    (tmp_path / "v.csv").write_text("key,a,b,c,d\n" + "\n".join(lines) + "\n")
    import_vectors(str(tmp_path / "v.csv"), str(tmp_path / "c"), table="ads")
    checkpoint = Checkpoint.open(str(tmp_path / "c"))
    checkpoint.verify()
    table = checkpoint.manifest.table("ads")
    assert (table.num_rows, table.has_values_only) == (200_000, True)
    table.require_same(ADS, "here")
    with pytest.raises(CheckpointMismatchError, match="width: expected 3, found 4"):
        table.require_same(WORDS, "here")
    with pytest.raises(CheckpointMismatchError, match="optimizer: expected 'adagrad'"):
        save(str(tmp_path / "d"), [(ADS, synthetic_rows(ADS, [1]))], base=str(tmp_path / "c"))
    total = sum(chunk.values[:, 0].sum(dtype=np.float64) for chunk in checkpoint.rows("ads"))
    assert total == sum(key + 0.5 for key in range(200_000))


def test_a_key_twice_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("key,a\n1,1\n2,1\n1,3\n")
    with pytest.raises(InputFileError, match="found 1 duplicates, for example key 1"):
        import_vectors(str(tmp_path / "v.csv"), str(tmp_path / "c"), table="ads")
    assert not (tmp_path / "c").exists()


# As PaddlePaddle 1.8.5 wrote it: save_persistables of float32[3] = (-0.1, -0.1, -0.1).
PADDLE_VARIABLE = bytes.fromhex(
    "000000000000000000000000000000000400000008051003b4ccccbdb4ccccbdc1ccccbd"
)
PADDLE_TYPES = {"float32": 5, "float64": 6, "int64": 3, "int32": 2, "bool": 0, "uint8": 20}


def paddle_variable(
    array: NDArray[Any], levels: Sequence[Sequence[int]] = (), *, packed: bool = False
) -> bytes:
    """The documented bytes of a variable."""
    description = bytes([8, PADDLE_TYPES[array.dtype.name]])
    if packed:
        description += bytes([0x12, array.ndim, *array.shape])
    else:
        description += b"".join(bytes([0x10, size]) for size in array.shape)
    data = struct.pack("<IQ", 0, len(levels))
    for level in levels:
        data += struct.pack(f"<Q{len(level)}Q", 8 * len(level), *level)
    return data + struct.pack("<Ii", 0, len(description)) + description + array.tobytes()


def paddle_program(variables: dict[str, tuple[int, bool]]) -> bytes:
    """A program whose only block has these variables: name -> (type, persistable)."""

    def field(number: int, data: bytes) -> bytes:
        assert len(data) < 128
        return bytes([number << 3 | 2, len(data)]) + data

    parts = b"\x08\x00\x10\x00"
    for name, (kind, persistable) in variables.items():
        about = field(1, name.encode()) + field(2, bytes([8, kind])) + bytes([0x18, persistable])
        parts += field(3, about)
    return field(1, parts)


VARIABLES = {
    "emb": np.arange(22, dtype=np.float32).reshape(11, 2),
    "fc.b_0": np.array([1.5], np.float32),
    "ids": np.arange(3, dtype=np.int64),
    "mask": np.array([[True], [False]]),
    "@LR@": np.array(0.5, np.float64),
}


def test_a_variable_of_paddle_itself(tmp_path: Path) -> None:
    (tmp_path / "fc_b").write_bytes(PADDLE_VARIABLE)
    (found,) = read_paddle_persistables(str(tmp_path)).items()
    assert found[0] == "fc_b"
    assert found[1].dtype == np.float32
    assert found[1].tobytes() == PADDLE_VARIABLE[-12:]


def same(found: dict[str, NDArray[Any]], names: list[str]) -> bool:
    assert sorted(found) == sorted(names)
    for name in names:
        assert found[name].dtype == VARIABLES[name].dtype
        assert np.array_equal(found[name], VARIABLES[name])
    return True


def test_a_file_for_each_variable(tmp_path: Path) -> None:
    for place, (name, array) in enumerate(VARIABLES.items()):
        levels = [[0, 2, 5]] * place
        (tmp_path / name).write_bytes(paddle_variable(array, levels, packed=bool(place % 2)))
    (tmp_path / "__model__").write_bytes(b"a program, not a variable")
    assert same(read_paddle_persistables(str(tmp_path)), list(VARIABLES))
    assert same(read_paddle_persistables(str(tmp_path), names=["ids"]), ["ids"])
    with pytest.raises(CheckpointMissingError, match="nobody"):
        read_paddle_persistables(str(tmp_path), names=["nobody"])


def test_all_variables_in_one_file(tmp_path: Path) -> None:
    data = b"".join(paddle_variable(VARIABLES[name]) for name in sorted(VARIABLES))
    (tmp_path / "params").write_bytes(data)
    names = list(VARIABLES)
    assert same(read_paddle_persistables(str(tmp_path), filename="params", names=names), names)
    with pytest.raises(ConfigError, match="without their names, .*; pass `names`"):
        read_paddle_persistables(str(tmp_path), filename="params")
    program = dict.fromkeys(reversed(names), (7, True))
    program |= {"feed": (9, True), "fetch": (10, True), "fc.tmp_0": (7, False)}
    (tmp_path / "__model__").write_bytes(paddle_program(program))
    assert same(read_paddle_persistables(str(tmp_path), filename="params"), names)
    with pytest.raises(CorruptFileError, match="params.*the end of the file, found"):
        read_paddle_persistables(str(tmp_path), filename="params", names=names[:-1])


GOOD = paddle_variable(VARIABLES["emb"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        *(GOOD[:size] for size in (3, 4, 11, 15, 19, 21, 25, len(GOOD) - 1)),
        GOOD + b"x",
        b"\x01" + GOOD[1:],
        GOOD[:4] + b"\xff" * 8 + GOOD[12:],
        GOOD[:12] + b"\x07" + GOOD[13:],
        GOOD[:16] + b"\xff\xff\xff\xff" + GOOD[20:],
        GOOD[:21] + b"\x63" + GOOD[22:],
        GOOD[:20] + b"\x0b" + GOOD[21:],
        GOOD[:23] + b"\x7f" + GOOD[24:],
        bytes(40),
    ],
)
def test_values_that_are_not_variables_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "emb").write_bytes(data)
    with pytest.raises(CorruptFileError, match="emb: expected a Paddle 1.x file with"):
        read_paddle_persistables(str(tmp_path))


def test_a_paddle_model_becomes_a_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "paddle"
    source.mkdir()
    for name, array in VARIABLES.items():
        (source / name).write_bytes(paddle_variable(array))
    manifest = import_paddle(str(source), str(tmp_path / "c"), tables=["emb"])
    assert [entry.name for entry in manifest.dense] == sorted(set(VARIABLES) - {"emb"})
    checkpoint = Checkpoint.open(str(tmp_path / "c"))
    checkpoint.verify()
    (chunk,) = checkpoint.rows("emb")
    assert chunk.keys.tolist() == list(range(11))
    assert np.array_equal(chunk.values, VARIABLES["emb"])
    for name, message in (("nobody", "expected one of"), ("ids", r"found int64\[3\]")):
        with pytest.raises(ConfigError, match=message):
            import_paddle(str(source), str(tmp_path / "d"), tables=[name])
    with pytest.raises(CheckpointMissingError, match="found none"):
        import_paddle(str(tmp_path / "nowhere"), str(tmp_path / "d"))


def test_the_command_line_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.csv").write_text("7,0.5,1\n9,2,4\n")
    command = ["checkpoint", "import", str(tmp_path / "v.csv"), str(tmp_path / "c")]
    assert main([*command, "--table", "ads", "--no-header"]) == 0
    assert "2 rows of 1 tables" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 2
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "emb").write_bytes(GOOD)
    target = str(tmp_path / "d")
    arguments = ["checkpoint", "import", str(tmp_path / "p"), target, "--table", "emb", "--json"]
    capsys.readouterr()
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == 11


@pytest.mark.parametrize("text", ["7,0.5,1\n9,2,4\n", '7,"0.5 1"\n9,"2 4"\n', "7,[0.5, 1]\n"])
def test_a_first_line_of_numbers_is_not_lost_as_a_header(tmp_path: Path, text: str) -> None:
    file = tmp_path / "v.csv"
    file.write_text(text)
    with pytest.raises(InputFileError, match="found numbers .* use has_header=False"):
        list(import_table(str(file)))
    if "[" not in text:
        store = LocalStore()
        store.define(TableSpec(name="ads", dim=2))
        assert store.import_table("ads", file, has_header=False) == 2
