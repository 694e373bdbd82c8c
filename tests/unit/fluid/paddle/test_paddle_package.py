from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator

import pytest

from sparsefleet.fluid.paddle.paddle_package import AliasFinder, provide


@pytest.fixture
def finder() -> Iterator[AliasFinder]:
    """Provide `json` as `old_json.json` for the duration of the test."""
    made = AliasFinder("old_json", {"json": "json", "loads": "json"})
    before = set(sys.modules)
    sys.meta_path.insert(0, made)
    package = type(sys)("old_json")
    package.__path__ = []
    sys.modules["old_json"] = package
    yield made
    sys.meta_path.remove(made)
    for name in set(sys.modules) - before:
        if name.startswith("old_json"):
            del sys.modules[name]


def test_a_module_is_itself_under_both_names(finder: AliasFinder) -> None:
    assert importlib.import_module("old_json.json") is json
    assert importlib.import_module("old_json.json.decoder") is json.decoder
    assert json.decoder.__spec__.name == "json.decoder"


def test_code_is_the_modules(finder: AliasFinder) -> None:
    spec = finder.find_spec("old_json.json.tool")
    assert spec is not None
    assert spec.loader.get_code("old_json.json.tool").co_filename == spec.origin
    assert "argparse" in spec.loader.get_source("old_json.json.tool")


@pytest.mark.parametrize("name", ["old_json.nothing", "old_json.json.nothing.x", "old_json.loads"])
def test_names_that_are_not_modules_are_refused(finder: AliasFinder, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"{name} is not supported") as caught:
        finder.find_spec(name)
    assert caught.value.name == name


def test_other_packages_are_left_to_others(finder: AliasFinder) -> None:
    assert finder.find_spec("json.decoder") is None
    assert finder.find_spec("old_json") is None


def test_only_the_real_name_changes_anything() -> None:
    before = list(sys.meta_path)
    provide("sparsefleet.fluid.paddle.provided.paddle")
    assert sys.meta_path == before
