"""Report which names used by public Fluid programs are supported."""

from __future__ import annotations

import csv
import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefleet import fluid
from sparsefleet.fluid.feeding.generator_loader import GeneratorLoader
from sparsefleet.fluid.framework.scope import ScopeVariable
from sparsefleet.fluid.paddle import paddle_package

__all__ = ["ApiName", "PublicName", "coverage", "public_names"]

_NAMES = Path(__file__).parent / "api_names.csv"
_PUBLIC = Path(__file__).parent / "public_names.csv"

Start = Callable[[], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiName:
    """A name, and whether it is supported.

    >>> found = {one.name: one for one in coverage()}
    >>> found["fluid.layers.fc"].is_here
    True
    """

    name: str
    """The name as programs write it. The first part may also be a class, or fleet[ps] and so on."""

    programs: int
    """Number of public programs that use the name."""

    core_programs: int
    """Number of these programs that deal with recommendation, matching or parameter servers."""

    is_here: bool


def coverage() -> list[ApiName]:
    """Return all names, most used first."""
    starts = _starts()
    with open(_NAMES, encoding="utf-8", newline="") as file:
        return [
            ApiName(
                name=row["name"],
                programs=int(row["programs"]),
                core_programs=int(row["core_programs"]),
                is_here=_is_here(row["name"], starts),
            )
            for row in csv.DictReader(file)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicName:
    """A public name of Fluid 1.8.5, as listed by `scripts/list_fluid_names.py`.

    A name is public if a module declares it in `__all__` or, without `__all__`, defines it; modules
    of `dygraph`, `slim` and `hapi` are left out.

    >>> {one.name: one for one in public_names()}["paddle.fluid.layers.fc"].is_here
    True
    """

    name: str
    is_here: bool
    """Whether the name can be resolved under its path."""

    cases: int
    """Number of cases from Paddle's tests that use the name and pass with Paddle."""

    passing: int
    """Number of these cases that also passed here when last measured."""


def public_names() -> list[PublicName]:
    """Return Fluid 1.8.5's public names, in order."""
    with open(_PUBLIC, encoding="utf-8", newline="") as file:
        return [_public_name(row) for row in csv.DictReader(file)]


def _public_name(row: dict[str, str]) -> PublicName:
    is_here = _resolves(row["name"])
    # Cases are counted by the last part of a name, which several names may share.
    passing = int(row["passing"]) if is_here else 0
    return PublicName(name=row["name"], is_here=is_here, cases=int(row["cases"]), passing=passing)


def _resolves(name: str) -> bool:
    """Return whether programs can import a path such as `paddle.fluid.layers.fc`."""
    module, _, last = name.rpartition(".")
    top, _, rest = module.removeprefix("paddle").removeprefix(".").partition(".")
    if not top:
        return hasattr(paddle_package, last)
    home = paddle_package._HOMES.get(top, "")
    if not home.endswith(f".{top}"):  # a name, not a module
        return False
    try:
        return hasattr(importlib.import_module(f"{home}.{rest}" if rest else home), last)
    except ImportError:
        return False


def _starts() -> dict[str, list[Start]]:
    """Map the first part of a name to the objects in which to look up the rest."""
    fleet = "incubate.fleet"
    servers = f"{fleet}.parameter_server.distribute_transpiler"
    strategies = [
        _within("BuildStrategy()"),
        _within("ExecutionStrategy()"),
        _within("DistributeTranspilerConfig()"),
        _within(f"{fleet}.collective.DistributedStrategy()"),
    ]
    return {
        "CompiledProgram": [_within("CompiledProgram")],
        "DataFeeder": [_within("DataFeeder")],
        "DataGenerator": [_within("incubate.data_generator.DataGenerator")],
        "DataLoader": [lambda: GeneratorLoader],
        "Dataset": [_within("InMemoryDataset()"), _within("QueueDataset()")],
        "DistributeTranspiler": [_within("DistributeTranspiler")],
        "Executor": [_within("Executor")],
        "LoDTensor": [_within("LoDTensor")],
        "Optimizer": [_within("optimizer.Optimizer")],
        "Program": [_within("Program()")],
        "PyReader": [_within("io.PyReader")],
        "Scope": [_within("Scope"), lambda: ScopeVariable],
        "Strategy": [_within(f"{servers}.StrategyFactory.create_sync_strategy()")],
        "Variable": [lambda: fluid.Variable("x", [1])],
        "config-attr": strategies,
        "fleet[collective]": [_within(f"{fleet}.collective.fleet"), _within(f"{fleet}.collective")],
        "fleet[ps]": [_within(f"{servers}.fleet")],
        "fleet[pslib]": [_within(f"{fleet}.parameter_server.pslib.fleet")],
        "fleet_strategy": [_within(f"{servers}.distributed_strategy")],
        "fluid": [lambda: fluid],
        "paddle": [lambda: paddle_package],
        "role_maker": [_within(f"{fleet}.base.role_maker")],
    }


def _within(path: str) -> Start:
    """Return a cached function that looks up the object at a path under `fluid`."""
    return functools.cache(lambda: _follow(fluid, path))


def _is_here(name: str, starts: dict[str, list[Start]]) -> bool:
    owner, _, rest = re.sub(r"\(.*?\)", "()", name).partition(".")
    for start in starts.get(owner, []):
        try:
            _follow(start(), rest)
        except (AttributeError, ImportError):
            continue
        return True
    return False


def _follow(start: Any, path: str) -> Any:
    """Follow a path of attributes, calling attributes that are followed by ()."""
    for part in path.split("."):
        start = getattr(start, part.removesuffix("()"))
        if part.endswith("()"):
            start = start()
    return start
