"""Module paths of Fluid that are not folders of this package."""

from __future__ import annotations

import importlib
import sys

import pytest

from sparsefleet import fluid
from sparsefleet.fluid.paths import paths, provide_paths


@pytest.mark.parametrize("path", paths())
def test_path_can_be_imported_and_has_its_public_names(path: str) -> None:
    module = importlib.import_module(f"sparsefleet.fluid.{path}")
    for name in module.__all__:
        assert hasattr(module, name), f"fluid.{path}.{name}"


def test_path_is_the_module_itself_and_no_copy() -> None:
    alias = importlib.import_module("sparsefleet.fluid.clip")
    assert alias is importlib.import_module("sparsefleet.fluid.optimizer.clip")
    assert fluid.clip is alias


def test_path_is_an_attribute_of_its_parent() -> None:
    transpiler = fluid.incubate.fleet.parameter_server.distribute_transpiler
    assert transpiler.StrategyFactory is transpiler.distributed_strategy.StrategyFactory


def test_unknown_name_of_a_path_is_refused_with_its_name_in_fluid() -> None:
    with pytest.raises(AttributeError, match=r"fluid\.contrib\.layers\.nothing is not supported"):
        _ = fluid.contrib.layers.nothing


def test_paths_are_provided_once() -> None:
    finders = list(sys.meta_path)
    provide_paths()
    assert sys.meta_path == finders


def test_the_old_path_of_data_sets_is_the_same_module() -> None:
    import sparsefleet.fluid.paddle.dataset.common as common

    old = importlib.import_module("sparsefleet.dataset.common")
    assert old is common
    assert importlib.import_module("sparsefleet.dataset.mnist").common is common
    assert common.__spec__ is not None
    assert common.__spec__.name == "sparsefleet.fluid.paddle.dataset.common"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sparsefleet.dataset.nothing")
