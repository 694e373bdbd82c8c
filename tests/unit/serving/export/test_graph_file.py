"""Graphs that are read, and what is passed to torch."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch
from tests.support.forged_zip import Entry, entries_of, plain, zip64_extra, zip_of
from tests.unit.serving.export.shop_model import exported_shop
from torch import Tensor, nn
from torch.utils._sympy import functions

from sparsefleet.errors import CorruptFileError, ExportError
from sparsefleet.serving.export import allow_operators, load_inference_model, save_inference_model
from sparsefleet.serving.export import graph_operators as operators
from sparsefleet.serving.export.graph_file import StoredZip, ZipWriter, plain_archive, read_graph
from sparsefleet.serving.export.graph_json import BadFormulaError, plain_formula


def graph_of_shop() -> Path:
    directory, manifest = exported_shop()
    return directory / manifest.graph


def test_archive_for_torch_holds_the_checked_entries_alone_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "plain.zip"
    path.write_bytes(plain_archive(graph_of_shop()).getvalue())
    theirs, ours = entries_of(graph_of_shop()), entries_of(path)
    assert ours.keys() == theirs.keys() - {"archive/.data/serialization_id"}
    tensors = [name for name in ours if "/weight_" in name]
    assert tensors
    assert all(ours[name] == theirs[name] for name in tensors)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            assert (entry.header_offset + 30 + len(entry.filename) + len(entry.extra)) % 64 == 0
    again = tmp_path / "again.zip"
    again.write_bytes(plain_archive(path).getvalue())
    assert again.read_bytes() == path.read_bytes()


@torch.library.custom_op("sparsefleet_tests::twice", mutates_args=())
def _twice(values: Tensor) -> Tensor:
    return values * 2


@_twice.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


class Doubling(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = torch.ops.sparsefleet_tests.twice(values)
        return found


def test_operators_of_other_libraries_need_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "_also_allowed", set())
    values = torch.rand(3, 2)
    with pytest.raises(ExportError, match=r"allow_operators\('sparsefleet_tests::twice'\)"):
        save_inference_model(tmp_path, Doubling(), values, onnx=False)
    allow_operators("sparsefleet_tests::twice")
    save_inference_model(tmp_path, Doubling(), values, onnx=False)
    assert torch.equal(load_inference_model(tmp_path)(values), values * 2)
    operators._also_allowed.clear()
    with pytest.raises(CorruptFileError, match="belongs to another library"):
        load_inference_model(tmp_path)


class Odd(nn.Module):
    """Names that are not identifiers, computed sizes, branches, and views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"shops/all": nn.Linear(6, 6), "user-id größe": nn.Linear(6, 6)})
        self.parts["user-id größe"].weight = self.parts["shops/all"].weight
        self.register_buffer("grid", torch.arange(3.0)[:, None].expand(3, 6))
        self.register_buffer("none", torch.zeros(0, 6))
        self.every_other = nn.Parameter(torch.rand(12)[::2])

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.parts["user-id größe"](self.parts["shops/all"](x))
        y = torch.cond(y.sum() > 0, lambda t: t + 1, lambda t: t - 1, (y,))
        count = x.shape[0]
        rest = x.new_ones(count * 2 + count // 2 + max(count, 3)).sum()
        y = y + x.masked_select(x > 0.5).sum() + ((x > 0) & ~(x > 2)).float()
        return y * rest + self.grid.sum(0) + self.none.sum() + self.every_other


def test_odd_models_predict_bit_for_bit_what_the_file_of_torch_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    manifest = save_inference_model(tmp_path, Odd(), torch.rand(4, 6), onnx=False)
    path = tmp_path / manifest.graph
    ours = read_graph(path)
    theirs = torch.export.load(path).module(check_guards=False)
    assert ours.code == theirs.code
    inputs = torch.rand(7, 6)
    with torch.no_grad():
        np.testing.assert_array_equal(ours(inputs)[0].numpy(), theirs(inputs)[0].numpy())


def test_graph_of_a_newer_torch_may_have_fields_that_are_left_out(tmp_path: Path) -> None:
    contents = entries_of(graph_of_shop())
    content = json.loads(contents["archive/models/model.json"])
    content["price"] = 3
    content["graph_module"]["graph"]["nodes"][0]["colour"] = {"as_operator": "os.system"}
    path = tmp_path / "graph.pt2"
    raw = json.dumps(content).encode()
    path.write_bytes(zip_of(plain({**contents, "archive/models/model.json": raw})))
    assert read_graph(path).code == read_graph(graph_of_shop()).code


def test_graph_that_cannot_be_opened_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match=f"{tmp_path} cannot be read as a graph"):
        read_graph(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_graph(tmp_path / "nothing.pt2")


def test_zip_files_of_several_tools_are_read(tmp_path: Path) -> None:
    contents = {"a/x": b"first", "a/y": b"", "a/z": bytes(70_000)}
    by_python = io.BytesIO()
    with zipfile.ZipFile(by_python, "w") as archive:
        for name, raw in contents.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(raw)
    described = plain(contents)
    for entry in described:
        raw = Entry("a", entry.data)
        entry.flags = 8
        crc = zip_of([raw])[14:18]
        entry.descriptor = b"PK\7\x08" + crc + 2 * len(entry.data).to_bytes(4, "little")
        entry.local = {"crc": 0, "size": 0, "packed": 0}
    wide = plain(contents)
    wide[2].central = {
        "size": 0xFFFFFFFF,
        "packed": 0xFFFFFFFF,
        "extra": zip64_extra(70_000, 70_000),
    }
    for raw_archive in (by_python.getvalue(), zip_of(described), zip_of(wide)):
        path = tmp_path / "archive.zip"
        path.write_bytes(raw_archive)
        with path.open("rb") as file:
            found = StoredZip(file)
            assert {name: found.read(name) for name in found.names} == contents


def test_written_archive_is_read_by_ourselves_and_by_python(tmp_path: Path) -> None:
    contents = {"a/x": b"first", "a/y": b"", "a/z": bytes(3 << 20)}
    path = tmp_path / "archive.zip"
    with path.open("wb") as file, ZipWriter(file) as target:
        for name, raw in contents.items():
            target.write(name, len(raw), iter((raw[:1], raw[1:])))
    with path.open("rb") as file:
        found = StoredZip(file)
        assert {name: found.read(name) for name in found.names} == contents
        assert [found.size(name) for name in contents] == [5, 0, 3 << 20]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == list(contents)


@pytest.mark.parametrize(
    "formula",
    [
        "Add(Symbol('s18', positive=True, integer=True), Integer(1))",
        "Mul(Integer(-1), Pow(Symbol('u0', integer=True), Integer(2)), Rational(1, 2))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
        "PythonMod(Symbol('s0'), 7)",
        "Pow(Symbol('s0', positive=True, integer=True), Rational(1, 2))",
        "Max(Float('2.5', precision=53), Symbol('s1', nonnegative=True))",
        "Equality(Symbol('s0', integer=True), Integer(2))",
        "s0 * s1 + 2 * u0 // 3",
        "Add(" + ", ".join(f"Symbol('s{i}', integer=True)" for i in range(300)) + ")",
    ],
)
def test_formulas_of_sizes_keep_their_meaning(formula: str) -> None:
    known = {name: getattr(functions, name) for name in functions.__all__}
    found = sympy.sympify(plain_formula(formula), locals=known)
    assert found == sympy.sympify(formula, locals=known)


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "x",
        "exit",
        "s0[0]",
        "s0.free_symbols",
        "Symbol('s0', commutative=False)",
        "Symbol('s0', integer=eval)",
        "Symbol('os.system')",
        "Symbol('s0').name",
        "Add(*s0)",
        "Add(s0, evaluate=False)",
        "Float('1', precision=1000000000)",
        "Float('nan')",
        "Integer('9')",
        "Rational(1, 0.5)",
        "9**9**9",
        "Pow(Integer(2), Symbol('s0'))",
        "Pow(2, Float('inf'))",
        "LShift(Integer(1), Integer(99999999999))",
        "f(s0)",
        "[s0]",
        "s0 if s1 else s2",
        "s0 < s1",
        "factorial(99999)",
        "1" * 5000,
        "(" * 300 + "s0" + ")" * 300,
        "-" * 3000 + "1",
        "\N{FULLWIDTH LATIN SMALL LETTER S}0",
    ],
)
def test_text_that_is_not_a_formula_of_sizes_is_refused(formula: str) -> None:
    with pytest.raises(BadFormulaError):
        plain_formula(formula)
