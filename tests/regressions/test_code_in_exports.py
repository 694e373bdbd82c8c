"""Untrusted exports: nothing in a graph file is run, imported or unpickled."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.forged_zip import entries_of, plain, zip_of
from tests.support.hostile_archives import CASES, PLANTED
from tests.support.served_models import serving
from tests.unit.serving.export.shop_model import batch, exported_shop, needed

import sparsefleet
from sparsefleet.errors import CorruptFileError
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import load_inference_model
from sparsefleet.serving.export.export_directory import sha256_of
from sparsefleet.serving.export.graph_file import read_graph
from sparsefleet.serving.verify import verify


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that code in an export would create, through a module on the path."""
    found = tmp_path / "ran"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / f"{PLANTED}.py").write_text(f"open({str(found)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.delitem(sys.modules, PLANTED, raising=False)
    return found


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_shop()[0], tmp_path / "export"))


def graph_in(directory: Path) -> Path:
    return directory / json.loads((directory / "manifest.json").read_text())["graph"]


def replace_graph(directory: Path, raw: bytes) -> None:
    """Put another graph into an export, with matching size and checksum."""
    path = graph_in(directory)
    path.write_bytes(raw)
    content = json.loads((directory / "manifest.json").read_text())
    for entry in content["files"]:
        if entry["name"] == path.name:
            entry |= {"bytes": len(raw), "sha256": sha256_of(path)}
    (directory / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize("case", CASES)
def test_hostile_archive_is_refused_and_runs_nothing(
    case: str, tmp_path: Path, marker: Path
) -> None:
    build, message = CASES[case]
    path = tmp_path / "graph.pt2"
    path.write_bytes(build(entries_of(graph_in(exported_shop()[0])), marker))
    with pytest.raises(CorruptFileError) as caught:
        read_graph(path)
    assert not marker.exists()
    assert re.search(message, str(caught.value)), caught.value
    assert str(path) in str(caught.value)


def load_and_predict(directory: Path) -> Any:
    return load_inference_model(directory)(**needed(batch(), "user", "label"))


def predict_with_torch(directory: Path) -> Any:
    return Predictor(directory, engine="torch").predict(needed(batch(), "user", "label"))


def serve(directory: Path) -> Any:
    async def start() -> None:
        async with serving(directory, engine="torch"):
            pass

    asyncio.run(start())


def check_with_the_gate(directory: Path) -> Any:
    report = verify(directory)
    assert not report.passed
    raise CorruptFileError(report.to_json())  # the check reports what is wrong, and raises nothing


@pytest.mark.parametrize("attack", ["two directories", "input spec imports", "output spec imports"])
@pytest.mark.parametrize("use", [load_and_predict, predict_with_torch, serve, check_with_the_gate])
def test_hostile_export_runs_nothing_whoever_opens_it(
    use: Callable[[Path], Any], attack: str, copied: Path, marker: Path
) -> None:
    replace_graph(copied, CASES[attack].build(entries_of(graph_in(copied)), marker))
    with pytest.raises(CorruptFileError) as caught:
        use(copied)
    assert not marker.exists()
    assert re.search(CASES[attack].message, str(caught.value)), caught.value


def test_graphs_are_read_in_one_place_only() -> None:
    """Whatever opens archives and pickles must go through the checks of `read_graph`."""
    package = Path(sparsefleet.__file__).parent
    reads = re.compile(
        r"export\.load\(|load_pt2\(|torch\.load\(|pickle\.loads?\(|PyTorchFileReader"
    )
    found = [path.name for path in package.rglob("*.py") if reads.search(path.read_text("utf-8"))]
    assert found == ["graph_file.py"]


def test_notes_of_a_graph_that_torch_would_look_up_do_not_reach_it(
    tmp_path: Path, marker: Path
) -> None:
    """Guards, source positions and hooks are dropped, so they can do no harm."""
    contents = entries_of(graph_in(exported_shop()[0]))
    content = json.loads(contents["archive/models/model.json"])
    content["guards_code"] = [f"__import__('pathlib').Path({str(marker)!r}).touch()"]
    for node in content["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {"source_fn_stack": f"x,torch.{PLANTED}", "custom": "not JSON"}
    content["graph_module"]["metadata"] = {"custom": "not JSON"}
    content["graph_module"]["module_call_graph"].append({"fqn": "x", "signature": {"in_spec": "?"}})
    changed = {**contents, "archive/models/model.json": json.dumps(content).encode()}
    path = tmp_path / "graph.pt2"
    path.write_bytes(zip_of(plain(changed)))
    found = {key for node in read_graph(path).graph.nodes for key in node.meta}
    assert not found & {"source_fn_stack", "custom", "stack_trace"}, found
    assert not marker.exists()


def test_archive_written_by_another_tool_predicts_the_same(copied: Path) -> None:
    inputs = needed(batch(7, seed=3), "user", "label")
    wanted = Predictor(copied, engine="torch").predict(inputs)
    replace_graph(copied, zip_of(plain(entries_of(graph_in(copied)))))
    np.testing.assert_array_equal(Predictor(copied, engine="torch").predict(inputs), wanted)


def test_graph_is_the_one_that_torch_reads_from_the_file(copied: Path) -> None:
    """Bit for bit: parameters, operators and their arguments."""
    path = graph_in(copied)
    ours, theirs = read_graph(path), torch.export.load(path).module(check_guards=False)
    assert ours.code == theirs.code
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
