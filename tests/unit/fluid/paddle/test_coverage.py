from __future__ import annotations

import json

import pytest

from sparsefleet.cli.main import main
from sparsefleet.fluid.paddle.api_coverage import coverage


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
