from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsefleet.cli.main import main
from sparsefleet.fluid.paddle.api_coverage import coverage, public_names

PAGE = Path(__file__).parents[4] / "docs" / "coming_from_fluid.md"


def test_names_are_the_most_used_first() -> None:
    names = coverage()
    assert [name.programs for name in names] == sorted(
        (name.programs for name in names), reverse=True
    )
    assert all(name.core_programs <= name.programs for name in names)
    assert len({name.name for name in names}) == len(names)


@pytest.mark.parametrize(
    "name",
    [
        "Executor.run",
        "Variable.stop_gradient",
        "fluid.DatasetFactory().create_dataset(InMemoryDataset)",
        "fluid.global_scope().var",
        "paddle.batch",
        "paddle.dataset.movielens.age_table",
    ],
)
def test_names_of_every_kind_are_found(name: str) -> None:
    assert {one.name: one for one in coverage()}[name].is_here


def test_the_command_shows_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fluid-coverage", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    missing = [one["name"] for one in found if not one["is_here"]]
    assert "fluid.Executor" not in missing
    assert main(["fluid-coverage", "--missing"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == missing
    assert last == f"{len(found) - len(missing)} of {len(found)} names are supported."
    assert main(["fluid-coverage", "--core"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < len(found)


def test_public_names_are_looked_up_under_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fluid-coverage", "--public", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["paddle.fluid.contrib.decoder.beam_search_decoder.StateCell"]["is_here"]
    assert not found["paddle.fluid.optimizer.Dpsgd"]["is_here"]
    assert all(one["passing"] <= one["cases"] for one in found.values())
    assert main(["fluid-coverage", "--public", "--missing"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [
        name for name, one in found.items() if not one["is_here"]
    ]
    assert last.startswith(f"{len(found) - len(lines)} of {len(found)} public names")


def test_the_page_states_how_many_public_names_resolve() -> None:
    names = public_names()
    here = sum(name.is_here for name in names)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"all {len(names):,} public names of 1.8.5" in text
    assert f"{here:,} names resolve. The other {len(names) - here:,} are" in text


@pytest.mark.parametrize("name", ["Tensor", "kEmptyVarName", "set_num_threads", "size_of_dtype"])
def test_names_of_the_native_module_are_found_in_core(name: str) -> None:
    assert {one.name: one for one in public_names()}[f"paddle.fluid.core.{name}"].is_here
